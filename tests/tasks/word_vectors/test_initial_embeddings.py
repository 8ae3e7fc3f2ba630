"""Every model with an embedding of words begins with the vectors of a file."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch

import seqloom
from seqloom.errors import SeqloomError, UsageError
from seqloom.runs.run_folder import load_run
from seqloom.tasks.word_vectors.initial_embeddings import word_embeddings
from seqloom.workflows.train import train

WIDTH = 16
WORDS = ("dog", "cat", "bird", "boat", "park", "red")
MODELS = {
    ("text-generation", "recurrent_lm:tiny"): f"model.embedding_width={WIDTH}",
    ("text-generation", "gpt:tiny"): f"model.width={WIDTH}",
    ("translation", "seq2seq:tiny"): f"model.embedding_width={WIDTH}",
    ("translation", "transformer:tiny"): f"model.width={WIDTH}",
    ("translation", "t5:tiny"): f"model.width={WIDTH}",
    ("translation", "gpt:tiny"): f"model.width={WIDTH}",
    ("denoising", "t5:tiny"): f"model.width={WIDTH}",
    ("fill-mask", "bert:tiny"): f"model.width={WIDTH}",
    ("feature-extraction", "elmo:tiny"): f"model.projection={WIDTH}",
    ("text-classification", "bag_of_words"): f"model.width={WIDTH}",
    ("text-classification", "convolution:tiny"): f"model.embedding_width={WIDTH}",
    ("text-classification", "recurrent:tiny"): f"model.embedding_width={WIDTH}",
    ("text-classification", "bert:tiny"): f"model.width={WIDTH}",
    ("text-classification", "elmo:tiny"): f"model.embedding_width={WIDTH}",
}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all words but the last."""
    folder = tmp_path_factory.mktemp("vectors")
    lines = [f"{len(WORDS) - 1} {WIDTH}"]
    for place, word in enumerate(WORDS[:-1]):
        lines.append(
            f"{word} " + " ".join(f"{place + number / 100:.2f}" for number in range(WIDTH))
        )
    (folder / "v.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return folder / "v.txt"


def data_of(task: str, folder: Path) -> list[str]:
    texts = [" ".join(words) for words in permutations(WORDS, 4)][::7]
    (folder / "text.txt").write_text("\n".join(texts) + "\n", "utf-8")
    rows = [f"{text}\t{text.split()[0]}" for text in texts]
    (folder / "table.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", "utf-8")
    if task == "text-classification":
        return [str(folder / "table.tsv")]
    return [str(folder / "text.txt")] * (2 if task == "translation" else 1)


@pytest.mark.parametrize(("task", "model"), MODELS)
def test_the_embeddings_of_its_words_are_those_of_the_file(
    task: str, model: str, vectors: Path, tmp_path: Path, notices: list[str]
) -> None:
    train(
        task,
        data_of(task, tmp_path),
        output_dir=tmp_path / "run",
        model=model,
        settings=[
            f"train.word_vectors={vectors}",
            MODELS[task, model],
            "data.tokenizer=words",
            "train.max_steps=1",
            "train.learning_rate=1e-12",
        ],
    )
    assert "wanted words without a vector: 1 of 6" in notices
    loaded = load_run(tmp_path / "run", "cpu")
    assert loaded.tokenizer is not None
    tables = word_embeddings(loaded.model, loaded.tokenizer.vocabulary_size)
    assert tables
    for _, table in tables:
        for place, word in enumerate(WORDS[:-1]):
            row = table.weight[loaded.tokenizer.token_bytes.index(word.encode())].detach()
            expected = place + torch.arange(WIDTH) / 100
            assert torch.allclose(row, expected, atol=1e-5)


def test_the_vectors_are_there_after_a_stop_before_the_first_checkpoint(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        f"train.word_vectors={vectors}",
        f"model.embedding_width={WIDTH}",
        "data.tokenizer=words",
        "train.max_steps=2",
        "train.threads=1",
    ]
    data = data_of("text-generation", tmp_path)

    def begin(name: str, resume: bool = False) -> dict[str, torch.Tensor]:
        folder = tmp_path / name
        if resume:
            train(resume=folder)
        else:
            train(
                "text-generation",
                data,
                output_dir=folder,
                model="recurrent_lm:tiny",
                settings=settings,
            )
        return dict(seqloom.load(folder).model.state_dict())

    whole = begin("whole")
    with monkeypatch.context() as patch:
        patch.setattr("seqloom.workflows.train.restore_checkpoint", _killed)
        with pytest.raises(KeyboardInterrupt):
            begin("cut")
    resumed = begin("cut", resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], r"vectors of words, which data\.tokenizer=bpe does not cut"),
        (["data.tokenizer=words"], rf"have {WIDTH} numbers, and .* 64; set model\.width={WIDTH}"),
    ],
)
def test_vectors_that_cannot_fit_are_refused(
    settings: list[str], message: str, vectors: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(
            "text-generation",
            data_of("text-generation", tmp_path),
            output_dir=tmp_path / "run",
            model="gpt:tiny",
            settings=[f"train.word_vectors={vectors}", *settings],
        )


def test_a_model_that_goes_on_from_another_has_embeddings_already(
    vectors: Path, tmp_path: Path
) -> None:
    data = data_of("text-classification", tmp_path)
    first = tmp_path / "first"
    settings = ["train.max_steps=1", "data.tokenizer=words"]
    train("text-classification", data, output_dir=first, model="recurrent:tiny", settings=settings)
    with pytest.raises(SeqloomError, match="--from, whose model has embeddings of its own"):
        train(
            "text-classification",
            data,
            output_dir=tmp_path / "next",
            start=first,
            settings=[f"train.word_vectors={vectors}", f"model.embedding_width={WIDTH}"],
        )
