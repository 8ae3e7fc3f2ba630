"""An ELMo from plain text: trained, stopped and continued, asked, and then trained for tasks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import seqloom
from seqloom.data.batching.corpus_windows import StreamPlan, WindowPlan, load_both_directions
from seqloom.errors import UsageError
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.runs.run_folder import load_run
from seqloom.shapes import IGNORE
from seqloom.tasks.encoders.elmo_vectors import ElmoVectors
from seqloom.tasks.settings import resolve
from seqloom.text.special_tokens import BOS, EOS
from seqloom.training.loop import Progress
from seqloom.workflows.analysis.layer_weights import explain_layer_weights
from seqloom.workflows.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "the cat sleeps on the mat .",
    "the dog runs in the park .",
    "a cat runs and a dog sleeps .",
    "the old dog and the small cat sleep .",
]
SETTINGS = [
    "data.tokenizer=whitespace",
    "train.max_steps=4",
    "train.evaluate_every=2",
    "train.batch_rows=4",
    "train.window=5",
    "model.width=8",
    "model.projection=6",
]
CHARACTERS = [
    "model.tokens=characters",
    "model.character_width=3",
    "model.filters=[[1,3],[2,4]]",
    "model.highways=1",
]
KINDS: dict[str, list[str]] = {
    "embedding": [],
    "characters": CHARACTERS,
    "carried": ["model.carry_states=true", "model.dropout=0.3"],
    "adaptive": ["model.output=adaptive", "model.tie_output=false", "model.output_cutoffs=[6,10]"],
    "importance": ["model.output=importance", "model.output_samples=4"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("elmo")
    (place / "text.txt").write_text("\n".join(TEXTS * 6) + "\n")
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(TEXTS * 4))
    (place / "labels.csv").write_text("text,label\n" + rows)
    sentences = []
    for text in TEXTS * 4:
        tags = ["N" if word in ("cat", "dog", "mat", "park") else "O" for word in text.split()]
        sentences.append("".join(f"{w} {t}\n" for w, t in zip(text.split(), tags, strict=True)))
    (place / "tags.conll").write_text("\n".join(sentences))
    return place


def language_model(place: Path, name: str, kind: str, **options: Any) -> Path:
    folder = place / name
    if folder.exists():
        return folder
    train(
        "feature-extraction",
        [str(place / "text.txt")],
        output_dir=folder,
        model="elmo:tiny",
        settings=[*SETTINGS, *KINDS[kind]],
        **options,
    )
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_in_the_same_bits(place: Path, kind: str) -> None:
    language_model(place, f"{kind}-whole", kind)

    class Killed(BaseException):
        pass

    def stop(now: Progress) -> None:
        if now.step == 3:
            raise Killed

    with pytest.raises(Killed):
        language_model(place, f"{kind}-stopped", kind, progress=stop)
    train(resume=place / f"{kind}-stopped")
    one, other = (load_run(place / f"{kind}-{end}").model for end in ("whole", "stopped"))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


class Ids:
    """A corpus of documents, each ended by `</s>`."""

    def __init__(self, *documents: list[int]) -> None:
        self.tokens = np.array([token for text in documents for token in (*text, EOS)])


@pytest.mark.parametrize("streams", [0, 1, 3])
def test_each_token_is_predicted_once_from_each_side(streams: int) -> None:
    """From the token beside it, over an epoch; a document is entered by its mark."""
    documents = [[20, 21, 22], [30], [40, 41, 42, 43, 44, 45, 46], [50, 51]]
    corpus = Ids(*documents)
    plan: Any = WindowPlan(seed=3, window=4, rows=2)
    if streams:
        plan = StreamPlan(seed=3, window=4, rows=streams)
    ahead: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []
    for rows in plan.epoch(corpus, 0):
        batch = load_both_directions(corpus, plan, rows, rows)
        for pairs, inputs, targets in (
            (ahead, batch.inputs, batch.targets),
            (back, batch.backward_inputs, batch.backward_targets),
        ):
            real = targets != IGNORE
            pairs += zip(inputs[real].tolist(), targets[real].tolist(), strict=True)
    expected_ahead: list[tuple[int, int]] = []
    expected_back: list[tuple[int, int]] = []
    for text in documents:
        marked = [BOS, *text, EOS]
        expected_ahead += pairwise(marked)
        expected_back += pairwise(marked[::-1])
    assert sorted(ahead) == sorted(expected_ahead)
    assert sorted(back) == sorted(expected_back)


def test_streams_go_on_in_each_direction() -> None:
    """Each window of a stream begins where the one before it ended, backward too."""
    corpus = Ids(list(range(20, 50)))
    plan = StreamPlan(seed=0, window=4, rows=2)
    seen: dict[tuple[str, int], list[int]] = {}
    for rows in plan.epoch(corpus, 0):
        batch = load_both_directions(corpus, plan, rows, rows)
        for row in range(2):
            for name, targets in (("ahead", batch.targets), ("back", batch.backward_targets)):
                ids = targets[row][targets[row] != IGNORE].tolist()
                seen.setdefault((name, row), []).extend(ids)
    for (name, _), ids in seen.items():
        step = 1 if name == "ahead" else -1
        words = [(a, b) for a, b in pairwise(ids) if min(a, b) >= 20]
        assert len(words) > 8
        assert all(b - a == step for a, b in words)


@pytest.mark.parametrize("kind", ["embedding", "characters"])
def test_evaluate_is_the_perplexity_of_each_direction(place: Path, kind: str) -> None:
    """Of whole texts, each from the empty state, by the model's layers and softmax."""
    folder = language_model(place, f"{kind}-whole", kind)
    (place / "test.txt").write_text("\n".join(TEXTS[:3]) + "\n")
    model: Any = seqloom.load(folder)
    metrics = model.evaluate([str(place / "test.txt")]).metrics
    elmo, tokenizer = model.elmo, model.tokenizer
    nats, count = [0.0, 0.0], 0
    for ids in tokenizer.encode(TEXTS[:3]):
        marked = torch.tensor([[BOS, *ids, EOS]])
        letters = None if model.spelling is None else spelled(model, marked)
        with torch.no_grad():
            layers, _ = elmo.layers(marked, letters, marked >= 0)
            forward, backward = layers[-1].chunk(2, dim=-1)
            output: FullOutput = elmo.output
            predicted = output.logits(forward[0, :-1]).log_softmax(-1)
            nats[0] -= float(predicted.gather(1, marked[0, 1:, None]).sum())
            predicted = output.logits(backward[0, 1:]).log_softmax(-1)
            nats[1] -= float(predicted.gather(1, marked[0, :-1, None]).sum())
        count += len(ids) + 1
    assert metrics["tokens"] == count
    assert metrics["forward_loss"] == pytest.approx(nats[0] / count, rel=1e-5)
    assert metrics["backward_loss"] == pytest.approx(nats[1] / count, rel=1e-5)
    assert metrics["loss"] == pytest.approx(sum(nats) / count / 2, rel=1e-5)


def spelled(model: Any, ids: Tensor) -> Tensor:
    letters = torch.full((*ids.shape, 12), -1)
    for step, token in enumerate(ids[0].tolist()):
        word = model.tokenizer.token_bytes[token] or model.tokenizer.pieces([token])[0].encode()
        letters[0, step, : len(word)] = torch.tensor([*word])
    return letters


@pytest.mark.parametrize("kind", ["embedding", "characters"])
def test_the_vectors_of_a_text_depend_on_nothing_else(place: Path, kind: str) -> None:
    model: Any = seqloom.load(language_model(place, f"{kind}-whole", kind))
    assert isinstance(model, ElmoVectors)
    texts = [*TEXTS, "", "dog"]
    together = model.layers(texts)
    for text, one in zip(texts, together, strict=True):
        (alone,) = model.layers([text])
        np.testing.assert_allclose(one.vector, alone.vector, atol=1e-6)
        np.testing.assert_allclose(one.layers, alone.layers, atol=1e-6)
        assert one.tokens == text.split()
        assert one.layers.shape == (3, len(text.split()), 12)
    assert not together[4].vector.any()
    expected = together[0].layers.mean(axis=0).mean(axis=0)
    np.testing.assert_allclose(together[0].vector, expected, atol=1e-6)


def test_unknown_words_are_read_by_their_characters(place: Path) -> None:
    """One that the vocabulary does not hold has vectors of its own, and its name in the answer."""
    model: Any = seqloom.load(language_model(place, "characters-whole", "characters"))
    zebra, gnu = model.layers(["the zebra sleeps", "the gnu sleeps"])
    assert zebra.tokens == ["the", "zebra", "sleeps"]
    assert not np.allclose(zebra.layers[0, 1], gnu.layers[0, 1])
    of_pieces: Any = seqloom.load(language_model(place, "embedding-whole", "embedding"))
    zebra, gnu = of_pieces.layers(["the zebra sleeps", "the gnu sleeps"])
    np.testing.assert_allclose(zebra.layers, gnu.layers, atol=1e-6)


def test_a_model_of_both_directions_neither_generates_nor_scores(place: Path) -> None:
    folder = language_model(place, "embedding-whole", "embedding")
    model: Any = seqloom.load(folder)
    for verb in ("generate", "score", "complete"):
        with pytest.raises(UsageError, match=r"sees the tokens on one side only"):
            getattr(model, verb)(["the"])


def task_model(place: Path, task: str, data: str, name: str, *settings: str, **start: Any) -> Path:
    train(
        task,
        [str(place / data)],
        output_dir=place / name,
        settings=[
            "train.max_steps=3",
            "train.evaluate_every=3",
            "train.batch_rows=8",
            "train.learning_rate=0.01",
            *settings,
        ],
        **start,
    )
    return place / name


@pytest.mark.parametrize("kind", ["embedding", "characters"])
@pytest.mark.parametrize(
    ("task", "data"),
    [("text-classification", "labels.csv"), ("token-classification", "tags.conll")],
)
def test_a_task_begins_with_the_language_models(
    place: Path, kind: str, task: str, data: str
) -> None:
    folder = language_model(place, f"{kind}-whole", kind)
    tuned = task_model(place, task, data, f"{kind}-{task}", start=folder)
    before: Any = load_run(folder).model
    run = load_run(tuned)
    assert isinstance(run.model, EncoderWithHead)
    after: Any = run.model.encoder
    # all of it is trained: both language models, the mixture and x
    for name, tensor in before.bilm.named_parameters():
        assert not torch.equal(tensor, dict(after.bilm.named_parameters())[name]), name
    assert after.output is None
    assert after.mix.weight.abs().sum() > 0
    assert after.mix.scale != 1
    assert after.embedding.weight.shape == (run.tokenizer.vocabulary_size, 16)
    model: Any = seqloom.load(tuned)
    inputs: list[Any] = [TEXTS[0], TEXTS[1]]
    if task == "token-classification":
        inputs = [text.split() for text in inputs]
    assert model.predict(inputs)[0] == model.predict(inputs[:1])[0]


def test_frozen_language_models_stay_and_the_mixture_is_trained(place: Path) -> None:
    """As in the paper."""
    folder = language_model(place, "embedding-whole", "embedding")
    frozen = ["train.freeze=[encoder.bilm]", "model.embedding_width=0", "model.mix=free"]
    tuned = task_model(place, "text-classification", "labels.csv", "frozen", *frozen, start=folder)
    before: Any = load_run(folder).model
    after: Any = load_run(tuned).model
    for name, tensor in before.bilm.state_dict().items():
        assert torch.equal(tensor, after.encoder.bilm.state_dict()[name])
    assert after.encoder.embedding is None
    assert after.encoder.mix.scale is None
    assert not torch.allclose(after.encoder.mix.weight, torch.full((3,), 1 / 3), atol=1e-4)


def test_the_weights_of_layers_are_shown(place: Path, tmp_path: Path) -> None:
    tuned = place / "frozen"
    if not tuned.exists():
        test_frozen_language_models_stay_and_the_mixture_is_trained(place)
    picture = tmp_path / "s.svg"
    report = explain_layer_weights([str(tuned)], str(picture))
    (one,) = report.models
    model: Any = load_run(tuned).model
    assert one.weights == model.encoder.mix.weight.tolist()
    assert one.scale == 1
    header, rows = report.table()
    assert header == ("model", "task", "s_0", "s_1", "s_2", "γ")
    assert rows[0][2] == f"{one.weights[0]:.3f}"
    assert picture.read_text().startswith("<svg")
    folder = language_model(place, "embedding-whole", "embedding")
    with pytest.raises(UsageError, match="on top of an elmo"):
        explain_layer_weights([str(folder)], str(tmp_path / "t.svg"))


def test_what_cannot_be_trained_is_said(place: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.output must be full, adaptive"):
        train(
            "feature-extraction",
            [str(place / "text.txt")],
            output_dir=place / "none",
            settings=["model.output=none"],
        )
    with pytest.raises(UsageError, match=r"data\.second is for pairs of texts"):
        train(
            "feature-extraction",
            [str(place / "labels.csv")],
            output_dir=place / "second",
            settings=["data.second=label"],
        )


def test_json_has_every_layer(place: Path) -> None:
    model: Any = seqloom.load(language_model(place, "embedding-whole", "embedding"))
    (place / "one.txt").write_text("the cat\n\n")
    answers = list(model.answers([str(place / "one.txt")]))
    content = json.loads(json.dumps(answers[0].content))
    assert [one["token"] for one in content["tokens"]] == ["the", "cat"]
    assert np.shape(content["tokens"][0]["layers"]) == (3, 12)
    assert np.shape(content["vector"]) == (12,)
    assert answers[1].content["tokens"] == []


def test_a_task_is_trained_from_an_elmo_at_the_rate_of_a_new_model(place: Path) -> None:
    """5e-5, which is for Transformers, leaves the LSTMs and the mixture as they were."""
    folder = language_model(place, "embedding-whole", "embedding")
    run = resolve(
        "text-classification",
        [str(place / "labels.csv")],
        output_dir=place / "never",
        model=None,
        validation=[],
        settings=[],
        config=None,
        start=folder,
    )
    assert (run.train.learning_rate, run.train.epochs) == (1e-3, 10)
