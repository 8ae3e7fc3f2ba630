"""One law for every model that writes texts and can be exported: transformers writes, from the files alone,
what seqloom writes with the run folder, and seqloom writes the same when it opens the export; or a notice
names what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.workflows.exported_runs import (
    FAMILIES,
    TEXTS,
    hf,
    our_texts,
    their_texts,
    write_run,
)
from tests.workflows.random_exports import outcome
from tests.workflows.test_exchange import save_bart, save_gpt2

import seqloom
from seqloom.config import DecodeConfig
from seqloom.interop.written_generation import OWN
from seqloom.runs import run_folder
from seqloom.workflows.exchange import export_model, import_model

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY: dict[str, Any] = {"strategy": "beam", "beam": 1, "max_length": 10}
BEAM: dict[str, Any] = {"strategy": "beam", "beam": 3, "refill": True, "max_length": 10}
CONTEXT = "transformers reads at most"
"""What is said of every language model."""
CACHE = "the decoder has more layers than the encoder"


def hold_the_law(run: Path, task: str, *, alike: bool = True) -> list[str]:
    """Exports a run, compares all texts, and returns the notices; `alike`: whether transformers must write
    the same."""
    out = run.with_name("out")
    notes = export_model(str(run), str(out))["notes"]
    assert isinstance(notes, list)
    ours, again = our_texts(run, task), our_texts(out, task)
    assert len(set(zip(ours.texts, ours.scores, strict=True))) > 1
    assert again.texts == ours.texts
    assert again.scores == pytest.approx(ours.scores, abs=1e-4)
    if alike:
        assert their_texts(out, task) == ours.texts
    assert run_folder.load_run(out).decode == run_folder.load_run(run).decode
    return [one for one in notes if not one.startswith((CONTEXT, CACHE))]


KINDS = [
    ("gpt2", "bpe", "none"),
    ("gpt2", "words", "lower"),
    ("gpt2", "unigram", "none"),
    ("openai-gpt", "wordpiece", "none"),
    ("openai-gpt", "characters", "none"),
    ("t5", "bpe", "nfc"),
    ("t5", "unigram", "lower"),
    ("t5", "bytes", "none"),
    ("t5 v1.1", "words", "none"),
    ("bart", "bpe", "none"),
    ("bart", "whitespace", "none"),
    ("marian", "wordpiece", "lower"),
    ("marian", "unigram", "none"),
]


@pytest.mark.parametrize(("family", "kind", "normalisation"), KINDS)
def test_texts_are_the_same_with_every_family_and_tokenizer(
    family: str, kind: str, normalisation: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", family, kind, normalisation, seed=2, **GREEDY)
    assert hold_the_law(run, FAMILIES[family][1]) == []


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("t5", BEAM),
    ("t5", BEAM | {"length_penalty": 0.0}),
    ("bart", BEAM | {"length_penalty": 0.0, "no_repeat_ngram": 2}),
    ("marian", BEAM | {"early_stopping": "likely"}),
    ("t5 v1.1", BEAM | {"early_stopping": "full", "length_penalty": 0.5}),
    ("t5", GREEDY | {"forced_end": True}),
    ("bart", BEAM | {"length_penalty": 2.0, "n_best": 2}),
    ("marian", BEAM | {"beam": 5, "min_length": 4}),
    ("t5", GREEDY | {"min_length": 6}),
    ("bart", GREEDY | {"max_length": 64}),
    ("gpt2", BEAM | {"length_penalty": 0.5}),
    ("gpt2", GREEDY | {"no_repeat_ngram": 3, "min_length": 2}),
    ("gpt2", GREEDY | {"max_length": 1}),
    ("gpt2", {"strategy": "sample", "top_k": 1, "temperature": 2.0, "max_length": 12}),
    ("t5", {"strategy": "sample", "min_p": 1.0, "top_p": 0.9, "max_length": 12}),
]


@pytest.mark.parametrize(("family", "settings"), SETTINGS)
def test_texts_are_the_same_with_every_setting_of_decoding(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", family, seed=4, **settings)
    assert hold_the_law(run, FAMILIES[family][1]) == []


NOT_THEIRS: dict[str, dict[str, Any]] = {
    "decode.refill=false": {"beam": 3, "max_length": 10},
    "decode.max_length is not set": {"beam": 1},
    "decode.groups=3 is not kept": BEAM | {"groups": 3},
    "decode.repetition_penalty": GREEDY | {"repetition_penalty": 1.5},
    "decode.no_repeat_ngram=1": GREEDY | {"no_repeat_ngram": 1},
    "decode.ban is not kept": GREEDY | {"ban": ("o",)},
    "decode.begin is not kept": GREEDY | {"begin": "the"},
    "decode.stop is not kept": GREEDY | {"stop": ("e",)},
    "goes to the others": BEAM | {"no_repeat_ngram": 2},
}


@pytest.mark.parametrize("named", NOT_THEIRS)
def test_what_transformers_has_no_keys_for_is_said_and_seqloom_keeps_it(
    named: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", "t5", seed=4, **NOT_THEIRS[named])
    notes = hold_the_law(run, "translation", alike=False)
    assert len(notes) == 1
    assert named in notes[0]


def test_a_language_model_goes_on_where_transformers_ends(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "gpt2", seed=4, beam=1, max_length=90)
    (note,) = hold_the_law(run, "text-generation", alike=False)
    assert note == "decode.max_length=90 is max_length=65 in transformers, the prompt counted"
    assert all(len(text) > 0 for text in their_texts(run.with_name("out"), "text-generation"))


def test_every_export_has_a_length(tmp_path: Path) -> None:
    for family, expected in {"t5": 512, "bart": 64, "gpt2": 65}.items():
        run = write_run(tmp_path / family / "run", family)
        export_model(str(run), str(run.with_name("out")))
        content = json.loads((run.with_name("out") / "generation_config.json").read_text())
        assert expected in (content.get("max_new_tokens"), content.get("max_length"))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_the_tokenizer_gives_what_the_model_was_trained_on(family: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", family)
    export_model(str(run), str(tmp_path / "out"))
    ours = run_folder.load_run(run).tokenizer
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    marked = ours.special_ids
    for text, ids in zip(TEXTS, ours.encode(TEXTS), strict=True):
        read = [*marked.bos, *ids] if family == "gpt2" else [*ids, *marked.suffix]
        assert theirs(text).input_ids == read
    assert theirs.padding_side == ("left" if family == "gpt2" else "right")


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_a_batch_in_transformers_gives_the_texts_of_single_ones(
    family: str, tmp_path: Path
) -> None:
    task = FAMILIES[family][1]
    run = write_run(tmp_path / "run", family, seed=4, **GREEDY)
    export_model(str(run), str(tmp_path / "out"))
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    kind = hf.AutoModelForCausalLM if family == "gpt2" else hf.AutoModelForSeq2SeqLM
    given = tokenizer(TEXTS, return_tensors="pt", padding=True)
    ids = kind.from_pretrained(tmp_path / "out").generate(**given)
    new = ids[:, given["input_ids"].shape[1] :] if family == "gpt2" else ids
    found = tokenizer.batch_decode(new, skip_special_tokens=True)
    # a text that continues another may begin with a blank
    texts = our_texts(run, task).texts
    assert [one.strip() for one in found] == [one.strip() for one in texts]


def test_a_generation_config_that_was_changed_counts_as_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "t5", beam=3, max_length=10)
    export_model(str(run), str(tmp_path / "out"))
    path = tmp_path / "out" / "generation_config.json"
    content = json.loads(path.read_text())
    assert content[OWN]["decode"] == {"beam": 3, "max_length": 10}
    path.write_text(json.dumps(content | {"transformers_version": "5.0.0"}))
    assert run_folder.load_run(tmp_path / "out").decode == DecodeConfig(beam=3, max_length=10)
    path.write_text(json.dumps(content | {"num_beams": 2}))
    changed = run_folder.load_run(tmp_path / "out").decode
    assert (changed.beam, changed.refill) == (2, True)


def test_an_export_is_imported_and_exported_again_as_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first" / "run", "t5", seed=4, **BEAM)
    hold_the_law(run, "translation")
    import_model(str(run.with_name("out")), str(tmp_path / "run"))
    assert our_texts(tmp_path / "run", "translation") == our_texts(run, "translation")
    assert hold_the_law(tmp_path / "run", "translation") == []
    for name in ("generation_config.json", "tokenizer.json"):
        before, after = run.with_name("out") / name, tmp_path / "out" / name
        assert json.loads(before.read_text()) == json.loads(after.read_text())


def test_random_exports_hold_the_law() -> None:
    """A few; by hand many: python -m tests.workflows.random_exports 200."""
    assert {outcome(number) for number in range(8)} <= {"equal", "said", "no text"}


FINE_TUNED: dict[str, tuple[str, list[str]]] = {
    "gpt2": ("text-generation", ["decode.strategy=beam", "decode.beam=1", "decode.max_length=12"]),
    "bart": ("translation", ["decode.beam=3", "decode.refill=true", "decode.max_length=9"]),
}


@pytest.mark.parametrize("name", FINE_TUNED)
def test_a_checkpoint_that_was_trained_on_goes_back_with_its_marks_and_settings(
    name: str, tmp_path: Path
) -> None:
    """GPT-2 begins a text with its end mark, BART is forced to begin with <s>."""
    task, settings = FINE_TUNED[name]
    checkpoint = tmp_path / "hub"
    if name == "gpt2":
        save_gpt2(checkpoint)
    else:
        save_bart(checkpoint)
    (tmp_path / "data.tsv").write_text("source\ttarget\n" + "a dog\ta dog\n" * 9)
    (tmp_path / "data.txt").write_text("a dog\n\n" * 9)
    data = [str(tmp_path / ("data.txt" if name == "gpt2" else "data.tsv"))]
    settings += ["train.max_steps=1", "train.learning_rate=1e-6", "train.evaluate_every=1"]
    run = tmp_path / "run"
    seqloom.train(task, data, validation=data, output_dir=run, start=checkpoint, settings=settings)
    assert hold_the_law(run, task) == []
    again = export_model(str(checkpoint), str(tmp_path / "again"))["notes"]
    assert isinstance(again, list)
    assert [one.startswith("seqloom reads <|endoftext|>") for one in again] == [True] * (
        name == "gpt2"
    )
