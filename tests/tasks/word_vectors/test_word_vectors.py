"""Word vectors from text to near words, and as files."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

import seqloom
from seqloom.errors import DataError, SeqloomError, UsageError
from seqloom.native.library import library
from seqloom.protocols import Request
from seqloom.tasks.word_vectors.vector_space import Analogy
from seqloom.text.vectors.fasttext_model import fnv1a
from seqloom.text.vectors.word_vectors import read_word_vectors
from seqloom.training.distributed import World
from seqloom.training.loop import Progress
from seqloom.workflows.check import check
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import refuse_workers, train

GROUPS = (
    ("king", "queen", "prince", "palace", "crown", "throne"),
    ("bread", "butter", "cheese", "milk", "honey", "egg"),
    ("river", "boat", "bridge", "water", "fish", "shore"),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences, each of words of one group."""
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(GROUPS[number % 3], 8)) for number in range(1500)]
    path = tmp_path_factory.mktemp("words") / "text.txt"
    path.write_text("\n".join([*lines, "lonely"]) + "\n", "utf-8")
    return path


WORD2VEC = ["train.threads=1", "train.batch_tokens=2000", "model.subsample=0"]
MODELS = {
    "word2vec": WORD2VEC,
    "cbow": [*WORD2VEC, "model.architecture=cbow"],
    "n-grams": [*WORD2VEC, "model.buckets=300"],
    "glove": ["train.threads=1", "train.batch_tokens=20", "train.epochs=10"],
}


def trained(text: Path, folder: Path, *settings: str, model: str = "word2vec") -> Path:
    train(
        "word-vectors",
        [str(text)],
        output_dir=folder,
        model="glove:tiny" if model == "glove" else "word2vec:tiny",
        settings=[*MODELS[model], *settings],
    )
    return folder


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(text, tmp_path_factory.mktemp("run") / "run")


def nearest(folder: Path) -> list[set[str]]:
    vectors = seqloom.load(folder)
    return [{near.word for near in vectors.similar(group[0], 5)} for group in GROUPS]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.architecture=cbow",),
        ("model.tied=true", "train.epochs=20"),
        ("model.vectors=sum",),
        ("model.drawn_window=false", "model.negatives=2"),
        ("data.tokenizer=whitespace",),
        ("model.buckets=300",),
        ("model.buckets=300", "model.architecture=cbow"),
        ("model.loss=softmax", "train.max_steps=2", "train.learning_rate=0.2"),
    ],
    ids=str,
)
def test_words_of_the_same_sentences_are_near(
    text: Path, tmp_path: Path, settings: Sequence[str]
) -> None:
    folder = trained(text, tmp_path / "run", *settings)
    assert nearest(folder) == [set(group[1:]) for group in GROUPS]


@pytest.mark.parametrize("vectors", ["sum", "input", "output"])
def test_glove_finds_the_words_of_the_same_sentences_near(
    text: Path, tmp_path: Path, vectors: str
) -> None:
    folder = trained(text, tmp_path / "run", f"model.vectors={vectors}", model="glove")
    assert nearest(folder) == [set(group[1:]) for group in GROUPS]
    with pytest.raises(UsageError, match="must have a vector, but lonely has none"):
        seqloom.load(folder).similar("lonely")


@pytest.mark.parametrize("model", list(MODELS))
def test_a_stopped_training_ends_in_the_same_bits(text: Path, tmp_path: Path, model: str) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 7:
            signal.raise_signal(signal.SIGTERM)

    whole = trained(text, tmp_path / "whole", model=model)
    result = train(
        "word-vectors",
        [str(text)],
        output_dir=tmp_path / "run",
        model="glove:tiny" if model == "glove" else "word2vec:tiny",
        settings=MODELS[model],
        progress=stop,
    )
    assert (result.stopped, result.step) == ("SIGTERM", 7)
    train(resume=tmp_path / "run")
    weights = "model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (whole / weights).read_bytes()


def test_glove_has_the_same_bits_for_any_number_of_threads(text: Path, tmp_path: Path) -> None:
    for threads in (1, 2):
        trained(text, tmp_path / f"{threads}", f"train.threads={threads}", model="glove")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in "12")
    assert one == two


def test_the_loss_of_glove_is_its_objective_over_all_counts(text: Path, tmp_path: Path) -> None:
    folder = trained(text, tmp_path / "run", "model.x_max=10", model="glove")
    model = seqloom.load(folder).model.requires_grad_(False)
    counts = Counter[tuple[str, str]]()
    for line in text.read_text("utf-8").splitlines():
        words = line.split()
        for first, second in combinations(range(len(words)), 2):
            for pair in ((words[first], words[second]), (words[second], words[first])):
                counts[pair] += 1 / (second - first)  # type: ignore[assignment]
    rows = {
        word.decode(): row
        for row, word in enumerate(seqloom.load(folder).run.tokenizer.token_bytes)
    }
    total = 0.0
    for (a, b), count in counts.items():
        i, j = rows[a], rows[b]
        product = float(model.embedding.weight[i] @ model.output.weight[j])
        error = product + float(model.bias[i]) + float(model.output_bias[j]) - np.log(count)
        total += 0.5 * min(count / 10, 1) ** 0.75 * error**2
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["validation_loss"] == pytest.approx(total / len(counts), rel=1e-4)


def test_several_workers_are_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UsageError, match=r"must be trained by one process.*but there are 2 workers"
    ):
        refuse_workers(World(0, 2), "word-vectors")


def test_several_threads_are_said(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="seqloom"):
        folder = trained(text, tmp_path / "run", "train.threads=2")
    said = "2 threads update the same vectors without waiting for each other (Hogwild)"
    assert said in caplog.text
    assert said in (folder / "README.md").read_text("utf-8")
    assert nearest(folder) == [set(group[1:]) for group in GROUPS]


@pytest.mark.skipif(library() is None, reason="several threads need the compiled pass")
def test_ordered_updates_of_threads_repeat(text: Path, tmp_path: Path) -> None:
    ordered = ("train.threads=2", "train.ordered_updates=true")
    folders = [trained(text, tmp_path / name, *ordered) for name in "ab"]
    first, second = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second
    assert "Hogwild" not in (folders[0] / "README.md").read_text("utf-8")
    assert nearest(folders[0]) == [set(group[1:]) for group in GROUPS]


def test_a_word_that_the_training_text_has_not_has_no_vector(run: Path) -> None:
    vectors = seqloom.load(run)
    with pytest.raises(UsageError, match="must have a vector, but sword has none"):
        vectors.similar("sword")
    assert vectors.similarity("King", "king") == pytest.approx(1)


@pytest.mark.parametrize("architecture", ["skip-gram", "cbow"])
def test_words_are_the_means_of_their_n_grams(
    text: Path,
    tmp_path: Path,
    architecture: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also unseen ones, by n-grams alone; they are used everywhere, and said."""
    settings = (f"model.architecture={architecture}", "model.longest_ngram=4")
    folder = trained(text, tmp_path / "run", *settings, model="n-grams")
    model = seqloom.load(folder)
    table = model.model.embedding.weight.detach().numpy()
    vocabulary = model.run.tokenizer.vocabulary_size
    rows = {word.decode(): row for row, word in enumerate(model.run.tokenizer.token_bytes)}
    for word in ("king", "kings", "a"):
        marked = f"<{word}>"
        ngrams = [
            marked[first : first + length]
            for length in (3, 4)
            for first in range(len(marked) - length + 1)
        ]
        parts = [vocabulary + fnv1a(ngram.encode()) % 300 for ngram in ngrams]
        own = [rows[word]] if word in rows else []
        wanted = table[[*own, *parts]].mean(axis=0)
        np.testing.assert_allclose(model.vector(word), wanted, atol=1e-6)
    assert model.similarity("kings", "king") > model.similarity("kings", "boat")
    (tmp_path / "words.txt").write_text("kings\nqueens - king + prince\n", "utf-8")
    with caplog.at_level("INFO", logger="seqloom"):
        answers = list(model.answers([str(tmp_path / "words.txt")]))
    assert [answer.content["unseen"] for answer in answers] == [["kings"], ["queens"]]
    assert "2 words without a vector of its own" in caplog.text
    (tmp_path / "pairs.txt").write_text("kings queen 9\nbutters honey 3\nfish boat 4\n", "utf-8")
    metrics = model.evaluate([str(tmp_path / "pairs.txt")]).metrics
    assert (metrics["pairs"], metrics["unseen_words"]) == (3, 2)
    (tmp_path / "questions.txt").write_text(": x\nkings king queens queen\n", "utf-8")
    assert model.evaluate([str(tmp_path / "questions.txt")]).metrics["questions"] == 1
    export_model(str(folder), str(tmp_path / "vectors.vec"))
    read = read_word_vectors(str(tmp_path / "vectors.vec"))
    assert np.array_equal(read.vectors[read.words.index("king")], model.vector("king"))
    with pytest.raises(UsageError, match="must have a vector"):
        model.vector("")


@pytest.mark.parametrize("model", ["word2vec", "glove"])
def test_phrases_are_joined_and_found_as_they_are_written(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    lines = text.read_text("utf-8").replace("king", "Old\tKing").replace("boat", "old boat")
    (tmp_path / "text.txt").write_text(lines, "utf-8")
    with caplog.at_level("INFO", logger="seqloom"):
        folder = trained(tmp_path / "text.txt", tmp_path / "run", "data.phrases=5.5", model=model)
    assert "data.phrases=5.5 joins 2 pairs of words, the most frequent old_" in caplog.text
    vectors = seqloom.load(folder)
    assert vectors.similarity("old king", "OLD_KING") == pytest.approx(1)
    near = {one.word for one in vectors.similar("Old King", 5)}
    assert near == {"queen", "prince", "palace", "crown", "throne"}
    (tmp_path / "words.txt").write_text("old king - queen + fish\n", "utf-8")
    assert len(list(vectors.answers([str(tmp_path / "words.txt")]))) == 1
    (tmp_path / "pairs.txt").write_text("old king\tqueen\t9\nold boat\tegg\t3\n", "utf-8")
    assert vectors.evaluate([str(tmp_path / "pairs.txt")]).metrics["pairs"] == 2
    with pytest.raises(UsageError, match="must have a vector, but king has none"):
        vectors.vector("king")


def test_rare_words_are_no_entries(text: Path, tmp_path: Path) -> None:
    folder = trained(text, tmp_path / "run", "data.minimum_count=2")
    words = {word.decode() for word in seqloom.load(folder).run.tokenizer.token_bytes if word}
    assert words == {word for group in GROUPS for word in group}


def test_check_shows_what_is_left_of_a_text_as_words(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b c\na a rare b\na one\n" * 300 + "last\n", "utf-8")
    settings = ["data.minimum_count=301", "model.window=1", "model.subsample=0.1"]
    paths, held_out = [str(tmp_path / "text.txt")], [str(tmp_path / "text.txt")]
    report = check("word-vectors", paths, held_out, [], settings)
    # a and b are left of 2,701 words and 901 ends of lines
    assert report.tokenizer["vocabulary"] == 2
    left_out = report.tokenizer["left out of train, percent"]
    assert left_out == pytest.approx(100 * 901 / 3602, abs=1e-3)
    assert report.training["words"] == 1800
    frequent = report.tokenizer["frequent"]
    ratio = 0.1 / (1200 / 1800)
    assert frequent["a"] == {"count": 1200, "kept": round(ratio**0.5 + ratio, 4)}
    read = 1200 * (ratio**0.5 + ratio) + 600 * (0.3**0.5 + 0.3)
    assert report.training["words read an epoch"] == round(read)
    assert report.training["seconds_a_step"] > 0
    pairs = check("word-vectors", paths, held_out, [], [*settings[:2], "model.subsample=0"])
    # a b; a a b; a: two neighbours, then four, then none
    assert pairs.training["pairs an epoch (from its first step)"] == 6 * 300
    glove = check("word-vectors", paths, [], [], settings[:2], model="glove")
    assert glove.training["pairs of near words"] == 3
    with pytest.raises(UsageError, match="--test changes nothing"):
        check("word-vectors", paths, [], paths, [])


def test_products_are_3cosmul(run: Path, tmp_path: Path) -> None:
    model = seqloom.load(run)
    (tmp_path / "words.txt").write_text("boat / river * king\n", "utf-8")
    (answer,) = model.answers([str(tmp_path / "words.txt")])
    best = model.analogy("river", "boat", "king", method="multiply")
    assert [one["word"] for one in answer.content["nearest"]] == [one.word for one in best]
    (only,) = model.space.answers([Analogy("river", "boat", "king")], "multiply")
    assert only == best[0].word
    (tmp_path / "words.txt").write_text("boat / river + king\n", "utf-8")
    with pytest.raises(DataError, match=r"words.txt:1: a text must be a word, a sum or a product"):
        list(model.answers([str(tmp_path / "words.txt")]))


def test_predict_gives_near_words_and_sums(run: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("King\n\nriver - boat + fish\n", "utf-8")
    answers = list(
        seqloom.load(run).answers([str(tmp_path / "words.txt")], Request(decode={"n_best": 3}))
    )
    assert [len(answer.content["nearest"]) for answer in answers] == [3, 0, 3]
    assert {one["word"] for one in answers[0].content["nearest"]} < set(GROUPS[0])
    assert not {"river", "boat", "fish"} & {one["word"] for one in answers[2].content["nearest"]}
    (tmp_path / "words.txt").write_text("king\nsword\n", "utf-8")
    with pytest.raises(DataError, match=r"words.txt:2: a word must have a vector, but sword"):
        list(seqloom.load(run).answers([str(tmp_path / "words.txt")]))


def test_an_analogy_is_the_word_nearest_to_the_sum(run: Path) -> None:
    model = seqloom.load(run)
    unit = {
        word: model.vector(word) / np.linalg.norm(model.vector(word)) for word in sum(GROUPS, ())
    }
    wanted = unit["boat"] - unit["river"] + unit["king"]
    others = {
        word: float(unit[word] @ wanted) for word in unit if word not in ("boat", "river", "king")
    }
    best = model.analogy("river", "boat", "king", 1)[0]
    assert best.word == max(others, key=lambda word: others[word])


@pytest.mark.parametrize("separator", ["\t", " ", ","])
def test_pairs_are_correlated_and_missing_ones_counted(
    run: Path, tmp_path: Path, separator: str
) -> None:
    pairs = [
        ("king", "queen", 9),
        ("Bread", "butter", 8.5),
        ("king", "fish", 1),
        ("sword", "king", 3),
    ]
    path = tmp_path / "pairs.txt"
    path.write_text("".join(separator.join(map(str, pair)) + "\r\n" for pair in pairs), "utf-8")
    metrics = seqloom.load(run).evaluate([str(path)]).metrics
    assert (metrics["pairs"], metrics["pairs_without_vector"]) == (3, 1)
    assert metrics["spearman"] >= 50


def test_analogies_are_measured_by_section(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(": first\nking queen bread butter\n: second\nking queen sword river\n", "utf-8")
    found = seqloom.load(run).evaluate([str(path)])
    assert found.metrics["questions"] == 1
    assert found.metrics["questions_without_vector"] == 1
    assert set(found.details["sections"]) == {"first"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("king queen\n", "pairs.txt:1: a line must be two words and a score, but is king queen"),
        ("king queen 1\nking queen high\n", "pairs.txt:2: a line must be two words and a score"),
        (": a\nking queen bread\n", "pairs.txt:2: an analogy must be four words"),
        ("\n", "there must be a pair of words with a score, or an analogy"),
        ("sword knife 3\n", "at least two pairs whose words have vectors, but there are 0 of 1"),
    ],
)
def test_what_is_no_test_is_refused(run: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "pairs.txt").write_text(content, "utf-8")
    with pytest.raises(DataError, match=message):
        seqloom.load(run).evaluate([str(tmp_path / "pairs.txt")])


@pytest.mark.parametrize("suffix", ["txt", "vec", "bin", "glove"])
def test_files_of_vectors_read_back_as_the_same_bits(
    run: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"vectors.{suffix}"
    written = export_model(str(run), str(path))
    read = read_word_vectors(str(path))
    model = seqloom.load(run)
    assert written["words"] == len(read.words) == 19
    for word, vector in zip(read.words, read.vectors, strict=True):
        assert np.array_equal(vector, model.vector(word))
    with pytest.raises(UsageError, match="must be a new file"):
        export_model(str(run), str(path))


def test_a_classifier_begins_with_the_vectors_of_a_run(run: Path, tmp_path: Path) -> None:
    """As with a file of them."""
    rows = [f"{word}\t{number}" for number, group in enumerate(GROUPS) for word in group]
    table = tmp_path / "table.tsv"
    table.write_text("text\tlabel\n" + "\n".join(rows * 3) + "\n", "utf-8")
    export_model(str(run), str(tmp_path / "v.bin"))
    weights = []
    for number, source in enumerate((run, tmp_path / "v.bin")):
        folder = tmp_path / f"classifier{number}"
        train(
            "text-classification",
            [str(table)],
            output_dir=folder,
            model="bag_of_words",
            settings=[
                f"train.word_vectors={source}",
                "model.width=32",
                "data.tokenizer=whitespace",
                "train.max_steps=2",
                "train.threads=1",
            ],
        )
        weights.append(seqloom.load(folder).model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.tokenizer=bpe"], "data.tokenizer must be words or whitespace for word vectors"),
        (["train.dtype=bfloat16"], "train.dtype changes nothing for word-vectors"),
        (["decode.n_best=3"], "decode.n_best changes nothing for word-vectors"),
        (["train.weight_decay=0.1"], "train.weight_decay changes nothing for word-vectors"),
        (["model.tied=true", "model.vectors=sum"], "model.vectors=sum changes nothing with"),
        (["model.negatives=32"], "model.negatives must be less than or equal to 31"),
        (["model.loss=softmax", "model.negatives=7"], "model.negatives"),
        (["model.shortest_ngram=2"], "model.shortest_ngram"),
        (["model.buckets=9", "model.shortest_ngram=7"], "model.shortest_ngram must be at most"),
        (["model.buckets=9", "model.vectors=sum"], "model.buckets needs model.vectors=input"),
        (["glove", "model.negatives=5"], "model.negatives"),
        (["glove", "data.validation=[text.txt]"], "data.validation changes nothing for glove"),
        (
            ["glove", "train.ordered_updates=true"],
            "train.ordered_updates changes nothing for glove",
        ),
        (["train.threads=1", "train.ordered_updates=true"], "changes nothing with train.threads=1"),
        (
            ["model.loss=softmax", "train.ordered_updates=true", "train.threads=2"],
            "changes nothing with model.loss=softmax",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    text: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    model = "glove" if "glove" in settings else "word2vec"
    with pytest.raises(SeqloomError, match=message):
        trained(text, tmp_path / "run", *[one for one in settings if one != model], model=model)
    assert not (tmp_path / "run" / "run.yaml").exists()


@pytest.mark.parametrize("verb", ["generate", "score", "complete"])
def test_vectors_write_no_text(run: Path, verb: str) -> None:
    with pytest.raises(UsageError, match=f"cannot {verb}"):
        getattr(seqloom.load(run), verb)(["king"])
