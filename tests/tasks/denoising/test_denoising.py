"""Denoising as a task: from text to a model that another training starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BartForConditionalGeneration, T5ForConditionalGeneration

import seqloom
from seqloom.config import DataConfig, TrainConfig
from seqloom.data.batching.corpus_windows import WindowPlan
from seqloom.errors import UsageError
from seqloom.registry import find_task
from seqloom.runs.run_folder import load_run
from seqloom.runs.settings import read_resumed
from seqloom.shapes import IGNORE
from seqloom.tasks.denoising.noisy_windows import noisy_windows
from seqloom.tasks.denoising.training_data import prepare_noisy_corpus
from seqloom.tasks.language_modeling.documents import each_document
from seqloom.tasks.settings import resolve
from seqloom.testing import check_task
from seqloom.text.special_tokens import BOS, DELIMITER, EOS, PAD
from seqloom.text.tokenizer_kinds import KINDS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer
from seqloom.training.objectives import Translation
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import train

SENTENCES = [
    f"The {a} {b} the {c}."
    for a in ("cat", "dog")
    for b in ("sees", "likes")
    for c in ("mouse", "tree")
]
TEXT = "\n".join(" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in range(8)) + "\n"
SMALL = ["train.window=24", "train.batch_rows=8", "train.max_steps=4", "model.width=16"]

AS_BART = [
    "model.norm=after",
    "model.positions=learned",
    "model.position_offset=2",
    "model.embedding_norm=true",
    "model.output_bias=true",
]


class Corpus:
    def __init__(self, ids: list[int]) -> None:
        self.tokens = np.asarray(ids, np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_sentinels_are_entries_that_no_text_spells(kind: str) -> None:
    plain = train_tokenizer([TEXT, "<extra_id_0> <extra_id_1> <extra_id_0>"], kind, 300)
    tokenizer = plain.with_sentinels(3)
    size = plain.vocabulary_size
    assert tokenizer.vocabulary_size == size + 3
    assert tokenizer.sentinels == (size + 2, size + 1, size)
    assert tokenizer.pieces(tokenizer.sentinels) == [f"<extra_id_{i}>" for i in range(3)]
    spelled = "the <extra_id_0> dog <extra_id_2>"
    assert tokenizer.encode([spelled]) == plain.encode([spelled])
    assert not set(tokenizer.encode([spelled])[0]) & set(tokenizer.sentinels)
    assert tokenizer.decode([*tokenizer.sentinels]) == ""
    again = TextTokenizer.from_json(tokenizer.to_json())
    assert again.sentinels == tokenizer.sentinels
    assert again.token_bytes == tokenizer.token_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_two_documents_stay_two_words(kind: str) -> None:
    """Also where nothing marks the first word of a document (byte-level BPE)."""
    lines = ["the cat sees", "dogs like it", "mice"]
    tokenizer = train_tokenizer(["\n".join(lines * 3)], kind, 300).with_sentinels(40)
    ids = [one for line in lines for one in [*tokenizer.encode([line])[0], EOS]]
    windows = noisy_windows(TrainConfig(window=60, batch_rows=4), tokenizer)
    whole = windows.text(Corpus(ids), windows.plan.window)
    assert tokenizer.decode(whole.tolist()).split() == " ".join(lines).split()
    # a window that begins or ends where a document does
    for begin, end in ((0, 3), (len(ids) - 2, len(ids))):
        part = windows.text(Corpus(ids[begin:end]), windows.plan.window)
        assert EOS not in part
        assert tokenizer.decode(part.tolist()).strip()


def test_noise_is_a_function_of_seed_epoch_and_position() -> None:
    """Another in each epoch, the same for any split of a batch, and every token is read once an epoch."""
    tokenizer = train_tokenizer([TEXT], "words", 300).with_sentinels(40)
    ids = [one for line in TEXT.splitlines() for one in [*tokenizer.encode([line])[0], EOS]]
    corpus, config = Corpus(ids), TrainConfig(window=16, batch_rows=4)
    windows = noisy_windows(config, tokenizer)
    seen: dict[int, list[list[int]]] = {}
    for epoch in (0, 1):
        read: list[int] = []
        for rows in windows.epoch(corpus, epoch):
            whole = windows.batch(corpus, rows, rows)
            for part in (rows[:1], rows[1:]):
                if len(part):
                    some = windows.batch(corpus, part, rows)
                    width = some.targets.shape[1]
                    place = 0 if len(part) == 1 and part[0] == rows[0] else 1
                    assert torch.equal(
                        whole.targets[place : place + len(part), :width], some.targets
                    )
            for row in rows:
                read += windows.text(corpus, int(row)).tolist()
                one = windows.denoising(corpus, int(row))
                seen.setdefault(epoch, []).append(one.source.tolist())
        assert sorted(read) == sorted(one for one in ids if one != EOS)
    assert sorted(seen[0]) != sorted(seen[1])
    again = [
        windows.denoising(corpus, int(row)).source.tolist()
        for rows in windows.epoch(corpus, 0)
        for row in rows
    ]
    assert again == seen[0]
    assert isinstance(windows.plan, WindowPlan)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("t5", []),
        ("transformer", ["train.noise=[sentence-permutation, infilling]"]),
        ("t5", ["train.noise=[prefix-lm]"]),
        ("gpt", ["model.bidirectional_source=true"]),
    ],
)
def test_it_keeps_the_laws_of_tasks(model: str, settings: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4)
    task = find_task("denoising")
    assert task is not None
    check_task(
        task,
        [str(path)],
        model=f"{model}:tiny",
        settings=["train.window=24", "train.batch_rows=8", *settings],
    )


def test_another_training_starts_from_it(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4)
    train(
        "denoising",
        [str(path)],
        output_dir=tmp_path / "pretrained",
        model="t5:tiny",
        settings=SMALL,
    )
    run = load_run(tmp_path / "pretrained")
    assert len(run.tokenizer.sentinels) == 2
    metrics = seqloom.load(tmp_path / "pretrained").evaluate([str(path)]).metrics
    assert metrics["loss"] > 0
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(
        "source\ttarget\n" + "".join(f"{one}\t{one.lower()}\n" for one in SENTENCES * 3)
    )
    train(
        "text2text-generation",
        [str(pairs)],
        output_dir=tmp_path / "tuned",
        start=tmp_path / "pretrained",
        settings=["train.max_steps=1", "train.learning_rate=1e-30", "train.weight_decay=0"],
    )
    tuned = load_run(tmp_path / "tuned")
    assert tuned.tokenizer.to_json() == run.tokenizer.to_json()
    for name, tensor in run.model.state_dict().items():
        assert torch.allclose(tuned.model.state_dict()[name], tensor, rtol=0, atol=1e-20)
    export_model(str(tmp_path / "pretrained"), str(tmp_path / "hub"))
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path / "hub")
    source = torch.tensor([[40, 41, run.tokenizer.sentinels[0], 42, EOS]])
    target = torch.tensor([[run.tokenizer.sentinels[0], 43, run.tokenizer.sentinels[1], EOS]])
    with torch.no_grad():
        inputs = torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], dim=1)
        logits = theirs(input_ids=source, decoder_input_ids=inputs).logits
        model: Any = run.model
        hidden, _ = model.read(inputs, model.encode(source))
        ours = model.output.logits(hidden)
    # special ids that are never a target have no probability here, and are suppressed there
    possible = ours.isfinite()
    assert possible[..., [EOS, *run.tokenizer.sentinels]].all()
    assert torch.allclose(ours[possible], logits[possible], atol=1e-5)


@pytest.mark.parametrize(
    ("model", "noise", "peer", "fields"),
    [
        ("t5", "random-spans", T5ForConditionalGeneration, []),
        ("t5", "bert", T5ForConditionalGeneration, []),
        ("transformer", "infilling", BartForConditionalGeneration, AS_BART),
    ],
)
def test_the_loss_is_that_of_transformers(
    model: str, noise: str, peer: Any, fields: list[str], tmp_path: Path
) -> None:
    """The same weights, batch and labels. Theirs knows all of the vocabulary; ours gives special ids that are
    never a target no probability, so it is compared with the scores of theirs without these ids."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4)
    settings = [*SMALL, f"train.noise=[{noise}]", "model.dropout=0", *fields]
    train(
        "denoising",
        [str(path)],
        output_dir=tmp_path / "run",
        model=f"{model}:tiny",
        settings=settings,
    )
    export_model(str(tmp_path / "run"), str(tmp_path / "hub"))
    theirs = peer.from_pretrained(tmp_path / "hub")
    run = load_run(tmp_path / "run")
    texts = list(each_document([str(path)], DataConfig(), run.tokenizer))
    corpus = Corpus([one for document in texts for one in document.ids])
    windows = noisy_windows(read_resumed(tmp_path / "run").train, run.tokenizer)
    rows = next(windows.epoch(corpus, 0))
    batch = windows.batch(corpus, rows, rows)
    with torch.no_grad():
        ours = Translation()(run.model, batch)
        found = theirs(
            input_ids=batch.source,
            attention_mask=(batch.source != PAD).long(),
            decoder_input_ids=batch.inputs,
            labels=batch.targets,
        )
        impossible = list(cast(Any, run.model).config.suppressed_ids)
        logits = found.logits.index_fill(-1, torch.tensor(impossible), -torch.inf)
        expected = cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    assert int(ours.count) == int((batch.targets != IGNORE).sum()) > 40
    assert float(ours.total / ours.count) == pytest.approx(float(expected / ours.count), abs=1e-5)
    if not impossible:
        assert float(found.loss) == pytest.approx(float(ours.total / ours.count), abs=1e-5)


def test_a_new_t5_is_trained_as_t5_was(tmp_path: Path) -> None:
    """With relative rates, and others as ever; a setting that is given holds."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)

    def rates(model: str, *settings: str) -> tuple[bool, float]:
        train = resolve("denoising", [str(path)], "", model, (), settings, None).train
        return train.relative_rate, train.learning_rate

    assert rates("t5:tiny") == (True, 0.01)
    assert rates("t5:tiny", "train.learning_rate=0.02") == (True, 0.02)
    assert rates("t5:tiny", "train.relative_rate=false") == (False, 0.001)
    assert rates("transformer:tiny") == rates("gpt:tiny") == (False, 0.001)


def test_sentences_that_end_nowhere_are_not_permuted_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT.replace(".", ""))
    settings = [*SMALL, "data.tokenizer=words", "train.noise=[sentence-permutation]"]
    with pytest.raises(UsageError, match="needs tokens that end a sentence"):
        train(
            "denoising",
            [str(path)],
            output_dir=tmp_path / "run",
            model="transformer:tiny",
            settings=settings,
        )


def test_a_prefix_language_model_is_trained_on_plain_text(tmp_path: Path) -> None:
    """Each id of a window but those of the prefix is a target; a training of pairs starts from it."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4)
    run = resolve("denoising", [str(path)], "", "gpt:tiny", (), ["model.context=24"], None)
    data = prepare_noisy_corpus(run, tmp_path, first=True)
    assert (run.train.noise, data.windows.plan.window) == (("prefix-lm",), 22)
    special = data.tokenizer.special_ids
    for rows in data.batches(0, 0):
        batch = data.load(rows, rows)
        for row, source, inputs, targets in zip(rows, *batch, strict=True):
            text = [*source[source != PAD][1:], *targets[targets != IGNORE][:-1]]
            assert [int(one) for one in text] == data.windows.text(data.corpus, int(row)).tolist()
            assert (source[0], inputs[0]) == (BOS, DELIMITER)
            assert len(source[source != PAD]) + len(inputs[inputs != PAD]) <= 24
    assert special.bos == (DELIMITER,)


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("t5:tiny", ["train.noise=[random-spans, infilling]"], "train.noise must be"),
        ("gpt:tiny", ["train.noise=[bert]"], "must be prefix-lm for a language model"),
        ("gpt:tiny", ["train.window=300"], "must be at most 63 with this model and noise"),
        ("t5:tiny", ["train.noise=[x]"], "must be of random-spans"),
        (
            "t5:tiny",
            ["train.noise=[mass]", "train.noise_span=4"],
            "train.noise_span is for infilling and random-spans",
        ),
        (
            "t5:tiny",
            ["train.noise=[deshuffling]", "train.noise_density=0.2"],
            "is a share of tokens",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    model: str, settings: list[str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    with pytest.raises(UsageError, match=said):
        train(
            "denoising",
            [str(path)],
            output_dir=tmp_path / "run",
            model=model,
            settings=settings,
        )
    assert not (tmp_path / "run" / "run.yaml").exists()
