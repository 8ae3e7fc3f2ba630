"""Exact search and beams on texts: what each input begins with, what stands beside what, the figures, the
file of results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.decoding.toys import Remembering

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig
from seqloom.data.batching.pair_batches import source_batch
from seqloom.decoding.exact_search import ExactSearchOptions, SearchBudget, exact_search
from seqloom.decoding.logits_processors import forbid
from seqloom.errors import UsageError
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.translation.translate import decode_texts
from seqloom.text.special_tokens import BOS, EOS, SPECIAL_TOKENS
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows.analysis import exact as workflow
from seqloom.workflows.analysis.exact import (
    BeamOutput,
    ExactSearcher,
    SearchResult,
    make_report,
    read_inputs,
    saved,
)

TOKENIZER = train_tokenizer(["a dog runs", "ein Hund läuft"], "characters", 100)
TEXTS = ["a dog", "ein Hund läuft", "runs a"]

pytestmark = pytest.mark.usefixtures("one_thread")


def bundle_of(model: Any, task: str, **decode: Any) -> LoadedRun:
    return LoadedRun(
        folder=Path("runs/x"),
        task=task,
        model_type="x",
        model=model,
        tokenizer=TOKENIZER,
        decode=DecodeConfig(**decode),
        weights=Path("none"),
    )


@pytest.fixture(scope="module")
def translator() -> Seq2Seq:
    """Of random weights, far from uniform, and so that the end is not too near."""
    torch.manual_seed(2)
    widths: dict[str, Any] = dict.fromkeys(
        ("width", "encoder_width", "embedding_width", "attention_width", "readout_width"), 8
    )
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=TOKENIZER.vocabulary_size, **widths)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def writer(context: int | None = None) -> Remembering:
    """A language model that ends soon."""
    model = Remembering(TOKENIZER.vocabulary_size, context)
    model.table[:, EOS] += 5
    return model


def test_a_translation_is_searched_for_and_beams_stand_beside_it(translator: Seq2Seq) -> None:
    bundle = bundle_of(translator, "translation", beam=3, max_length=6)
    searcher = ExactSearcher(bundle, beams=[4, 1, 4], budget=SearchBudget(nodes=3000))
    rows = list(searcher.compare([*TEXTS, "  "]))
    assert [row.input for row in rows] == TEXTS
    rules = [forbid([i for i in range(len(SPECIAL_TOKENS)) if i != EOS])]
    for row in rows:
        assert list(row.beams) == ["beam 1", "beam 4", "its own: beam 3, α 1"]
        state = translator.encode(source_batch(TOKENIZER.encode([row.input])))
        alone = exact_search(
            translator,
            state,
            [BOS],
            ExactSearchOptions(max_new_tokens=6, eos=EOS, processors=rules),
        )
        assert alone.best is not None
        assert row.tokens == alone.best.tokens
        assert (
            row.log_probability == row.score == pytest.approx(alone.best.log_probability, abs=1e-4)
        )
        assert row.empty_log_probability == pytest.approx(alone.empty, abs=1e-4)
        assert (row.proven, row.gap) == (True, 0.0)
        assert row.text == TOKENIZER.decode(alone.best.tokens)
    for name, settings in {
        "beam 1": DecodeConfig(max_length=6, beam=1, length_penalty=0),
        "beam 4": DecodeConfig(max_length=6, beam=4, length_penalty=0),
        "its own: beam 3, α 1": DecodeConfig(max_length=6, beam=3),
    }.items():
        users = decode_texts(translator, TOKENIZER, TEXTS, settings)
        outputs = [row.beams[name] for row in rows]
        assert [output and (output.text, output.finished) for output in outputs] == [
            (one[0].text, one[0].finished) for one in users
        ]
        for row, output in zip(rows, outputs, strict=True):
            assert output is not None
            assert row.score is not None
            # α = 0 for all, whatever they were chosen by
            assert output.score == output.log_probability
            if output.finished:
                assert output.shortfall == row.score - output.score >= 0
            else:
                assert output.shortfall is None


def test_the_cap_is_that_of_the_folder_or_by_the_source(
    translator: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    caps = list[int]()

    def watched(
        model: Any, state: Any, prompt: Any, options: ExactSearchOptions, known: Any
    ) -> Any:
        caps.append(options.max_new_tokens)
        return exact_search(model, state, prompt, options, known)

    monkeypatch.setattr(workflow, "exact_search", watched)
    budget = SearchBudget(nodes=1)
    for model, task in (
        (translator, "translation"),
        (writer(), "text-generation"),
        (writer(12), "text-generation"),
    ):
        for changes in ({}, {"max_length": 5}):
            searcher = ExactSearcher(
                bundle_of(model, task), beams=[1], budget=budget, decode=changes
            )
            list(searcher.compare(["a dog"]))
    assert caps == [2 * 5 + 20, 5, 200, 5, 12 + 1 - 6, 5]


def test_a_prompt_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = ExactSearcher(
        bundle_of(writer(12), "text-generation"), beams=[2], budget=SearchBudget(nodes=500)
    )
    rows = list(searcher.compare(["", "a dog"]))
    assert [row.input for row in rows] == ["", "a dog"]
    for row in rows:
        (ids,) = TOKENIZER.encode([row.input])
        assert row.tokens is not None
        assert row.text is not None
        assert TOKENIZER.decode([*ids, *row.tokens]) == row.input + row.text
    for text, changes in (("a dog runs a dog", {}), ("a dog", {"max_length": 8})):
        with pytest.raises(UsageError, match="looks at 12 tokens"):
            list(ExactSearcher(searcher.run, beams=[1], decode=changes).compare([text]))


def test_rules_hold_in_every_search(translator: Seq2Seq) -> None:
    bundle = bundle_of(translator, "translation", max_length=5)
    changes = {"min_length": 2, "ban": ("a",)}
    for row in ExactSearcher(
        bundle, beams=[1, 3], decode=changes, budget=SearchBudget(nodes=3000)
    ).compare(TEXTS):
        assert row.empty_log_probability == -math.inf
        for tokens, text in [
            (row.tokens, row.text),
            *((beam.tokens, beam.text) for beam in row.beams.values() if beam),
        ]:
            assert tokens is not None
            assert text is not None
            assert len(tokens) >= 2
            assert "a" not in text


def test_the_beams_are_where_the_search_starts(translator: Seq2Seq) -> None:
    """One node finds nothing longer than the empty output, which is forbidden here."""
    bundle = bundle_of(translator, "translation", max_length=9, min_length=1)
    rows = list(ExactSearcher(bundle, beams=[1, 8], budget=SearchBudget(nodes=1)).compare(TEXTS))
    for row in rows:
        finished = [beam for beam in row.beams.values() if beam is not None and beam.finished]
        assert row.tokens == (
            max(finished, key=lambda beam: beam.score).tokens if finished else None
        )
    assert any(row.tokens for row in rows)


def test_a_folder_that_samples_has_no_search_of_its_own(
    translator: Seq2Seq, notices: list[str]
) -> None:
    bundle = bundle_of(translator, "translation", strategy="sample", temperature=9.0, max_length=4)
    sampling = ExactSearcher(bundle, beams=[2])
    assert len(notices) == 1
    assert list(sampling.searches) == ["beam 2"]
    plain = ExactSearcher(bundle_of(translator, "translation", max_length=4), beams=[2])
    # no temperature
    assert [row.score for row in sampling.compare(TEXTS)] == [
        row.score for row in plain.compare(TEXTS)
    ]


def test_with_a_length_penalty_all_are_measured_by_it(translator: Seq2Seq) -> None:
    bundle = bundle_of(translator, "translation", beam=2, max_length=4)
    for row in ExactSearcher(
        bundle, beams=[3], length_penalty=0.5, budget=SearchBudget(nodes=3000)
    ).compare(TEXTS):
        assert row.tokens is not None
        assert row.log_probability is not None
        assert row.score == pytest.approx(row.log_probability / math.sqrt(len(row.tokens) + 1))
        for beam in row.beams.values():
            assert beam is not None
            assert beam.score == pytest.approx(
                beam.log_probability / math.sqrt(len(beam.tokens) + beam.finished)
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": {"stop": ("x",)}}, "decode.stop"),
        ({"beams": [0]}, "1 to 1000"),
        *(
            ({"length_penalty": one}, "length_penalty must be a number from 0")
            for one in (-1.0, math.nan, math.inf, 1e300)
        ),
    ],
)
def test_what_cannot_be_asked(translator: Seq2Seq, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ExactSearcher(bundle_of(translator, "translation"), **options)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("beam", {"strategy": "sample", "top_k": 5}),
        ("beam", {"strategy": "beam"}),
        ("beam", {"n_best": 2}),
        *(("sample", {name: 0.5}) for name in ("temperature", "top_p", "min_p")),
        ("sample", {"beam": 3}),
    ],
)
def test_settings_that_would_change_nothing_are_refused(
    translator: Seq2Seq, strategy: str, changes: dict[str, Any]
) -> None:
    name, *_ = changes
    with pytest.raises(UsageError, match=rf"^decode.{name} changes nothing in an exact search"):
        ExactSearcher(bundle_of(translator, "translation", strategy=strategy), decode=changes)


def test_blank_lines_are_inputs_of_a_language_model_only(
    tmp_path: Path, notices: list[str]
) -> None:
    path = tmp_path / "inputs.txt"
    path.write_text("a\n\nb\n \n")
    options: dict[str, Any] = {"path": str(path), "data": DataConfig()}
    assert read_inputs(task="translation", **options) == ["a", "b"]
    assert notices == [f"2 lines skipped: blank (first: {path}:2)"]
    assert read_inputs(task="translation", limit=2, **options) == ["a"]
    assert read_inputs(task="text-generation", **options) == ["a", "", "b", " "]
    assert notices[-1].startswith("2 lines kept unchanged: blank")


@pytest.mark.parametrize(
    ("text", "task"), [("", "translation"), ("", "text-generation"), (" \n\n", "translation")]
)
def test_a_file_without_inputs_is_refused(tmp_path: Path, text: str, task: str) -> None:
    path = tmp_path / "inputs.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"^there must be an input, but .*inputs.txt has none$"):
        read_inputs(str(path), DataConfig(), task)


# The report


def compared(
    tokens: list[int] | None, total: float, proven: bool, gap: float | None, beam: BeamOutput | None
) -> SearchResult:
    return SearchResult(
        input="x",
        text=None if tokens is None else "y",
        tokens=tokens,
        log_probability=None if tokens is None else total,
        score=None if tokens is None else total,
        proven=proven,
        gap=gap,
        empty_log_probability=-4.0,
        nodes=10,
        seconds=0.5,
        beams={"beam 1": beam},
    )


def output(tokens: list[int], shortfall: float | None) -> BeamOutput:
    return BeamOutput("z", tokens, -9.0, -9.0, shortfall is not None, shortfall, 0.25)


def test_the_report_counts_what_the_rows_say() -> None:
    rows = [
        compared([20, 21], -2.0, True, 0.0, output([20, 21], 1e-6)),
        compared([], -4.0, True, 0.0, output([30, 31, 32], 3.0)),
        compared([22], -6.0, False, 0.5, output([23], 0.5)),
        compared([24], -8.0, False, 0.25, output([25] * 10, None)),
        compared([26], -5.0, True, 0.0, None),
        compared(None, 0.0, True, None, None),
    ]
    report = make_report(rows)
    (beam,) = report.searches
    assert (report.inputs, report.found, report.proven, report.empty, report.largest_gap) == (
        6,
        5,
        4,
        1,
        0.5,
    )
    assert (report.mean_log_probability, report.mean_empty_log_probability, report.mean_length) == (
        -5.0,
        -4.0,
        1.0,
    )
    assert (report.nodes, report.seconds) == (60, 3.0)
    assert (beam.search, beam.errors, beam.cut_off, beam.same, beam.seconds) == (
        "beam 1",
        2,
        2,
        1,
        1.0,
    )
    assert beam.mean_shortfall == pytest.approx(3.5 / 3)
    assert beam.largest_shortfall == 3.0
    assert beam.mean_length == (2 + 3 + 1 + 10) / 4
    header, table = report.table()
    assert all(len(row) == len(header) for row in table)
    assert [row[:2] for row in table] == [("exact", "0"), ("beam 1", "2")]
    assert make_report([]).searches == []


def test_results_are_kept_as_they_come_also_where_it_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "SAVE_SECONDS", -1.0)
    path = tmp_path / "results.jsonl"
    rows = [compared([20], -2.0, True, 0.0, output([20], 0.0)), compared([], -4.0, True, 0.0, None)]

    def stopping() -> Iterator[SearchResult]:
        yield from rows
        raise KeyboardInterrupt

    results = saved(stopping(), str(path))
    for number in (1, 2):
        next(results)
        assert len(path.read_text().splitlines()) == number
    monkeypatch.setattr(workflow, "SAVE_SECONDS", 9.0)
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        json.loads(files.json_line(row.summary())) for row in rows
    ]
    with pytest.raises(UsageError, match="new file"):
        next(saved(iter(rows), str(path)))
    assert list(saved(iter(rows), None)) == rows
