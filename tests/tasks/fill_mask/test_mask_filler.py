"""fill-mask as the pipeline of `transformers` has it, and pseudo-perplexity as its definition has it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.workflows.encoders import TEXTS, saved

import seqloom
from seqloom.cli import main
from seqloom.errors import DataError, UsageError
from seqloom.runs.run_folder import load_run
from seqloom.tasks.encoders import sentence_vectors
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.fill_mask.mask_filler import MaskFiller
from seqloom.tasks.fill_mask.pseudo_likelihood import pseudo_log_probs
from seqloom.workflows.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("one_thread")
MASKED = [
    "the [MASK] sleeps.",
    "a [MASK] runs on[MASK]the log, and the big mat",
    "[MASK]",
    "THE DOG [MASK]",
    "the house [MASK] ! [MASK]",
]


def test_candidates_are_those_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path, hf.BertForMaskedLM)
    pipeline: Any = hf.pipeline(
        "fill-mask",
        model=model,
        tokenizer=hf.AutoTokenizer.from_pretrained(tmp_path),
        device="cpu",
        top_k=4,
    )
    found = seqloom.load(tmp_path).fill_masks(MASKED, n_best=4)
    for text, filled in zip(MASKED, found, strict=True):
        theirs = pipeline(text)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        assert [[one.id for one in mask] for mask in filled.masks] == [
            [one["token"] for one in mask] for mask in theirs
        ]
        for ours, their in zip(filled.masks, theirs, strict=True):
            assert [one.probability for one in ours] == pytest.approx(
                [one["score"] for one in their], abs=1e-5
            )
            assert [one.token.strip() for one in ours] == [
                one["token_str"].removeprefix("##").strip() for one in their
            ]
    monkeypatch.setitem(sentence_vectors.BUDGET, "cpu", 1)
    alone = seqloom.load(tmp_path, "cpu").fill_masks(MASKED, n_best=10_000)
    assert [one.text for one in alone] == [one.text for one in found]
    assert all(
        sum(one.probability for one in mask) == pytest.approx(1)
        for filled in alone
        for mask in filled.masks
    )


def test_the_best_stands_in_the_text_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, hf.BertForMaskedLM)
    filler = MaskFiller(load_run(tmp_path))
    best = iter([" cat", "ing"])

    def certain(rows: Any) -> tuple[torch.Tensor, list[int]]:
        logits = torch.zeros(2, filler.tokenizer.vocabulary_size)
        for row, word in enumerate(best):
            logits[row, [one.decode() for one in filler.tokenizer.token_bytes].index(word)] = 9
        return logits, [0, 0]

    monkeypatch.setattr(filler, "_logits", certain)
    assert next(filler.fill(["The [MASK] is Run [MASK]!"])).text == "The cat is Runing!"


def test_texts_without_a_mask(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, hf.BertForMaskedLM)
    (tmp_path / "t.txt").write_text("the [MASK]\n\nthe cat\na [MASK]\n" + "[MASK] " * 15 + "\n")
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path), str(tmp_path / "t.txt")])
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    assert out.startswith("the ")
    assert "t.txt:3: a text must hold [MASK]" in err
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                "predict",
                str(tmp_path),
                str(tmp_path / "t.txt"),
                "--set",
                "data.on_bad_line=skip",
                "--json",
                "--set",
                "decode.n_best=3",
            ]
        )
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [[len(mask) for mask in line["masks"]] for line in lines] == [[3], [], [], [3], []]
    assert set(lines[0]["masks"][0][0]) == {"token", "id", "probability"}
    assert "t.txt:3" in err
    assert "t.txt:5" in err
    assert "too long" in err
    with pytest.raises(DataError, match="at most 16 tokens, marks counted, but has 17"):
        seqloom.load(tmp_path).fill_masks(["[MASK] " * 15])
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path), str(tmp_path / "t.txt"), "--set", "decode.beam=3"])
    assert "decode.beam changes nothing" in capfd.readouterr().err


def test_pseudo_log_probs_are_those_of_each_token_masked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path, hf.BertForMaskedLM)
    bundle = load_run(tmp_path)
    ours: Any = bundle.model
    ids, special_ids = bundle.tokenizer.encode(TEXTS), bundle.tokenizer.special_ids
    assert special_ids.mask is not None
    monkeypatch.setitem(sentence_vectors.BUDGET, "cpu", 40)
    found = pseudo_log_probs(ours, ids, special_ids, special_ids.mask)
    total = 0.0
    for one, log_probs in zip(ids, found, strict=True):
        whole = torch.tensor([[*special_ids.prefix, *one, *special_ids.suffix]])
        for at, token in enumerate(one):
            masked = whole.clone()
            masked[0, at + 1] = special_ids.mask
            with torch.inference_mode():
                wanted = float(model(masked).logits[0, at + 1].log_softmax(-1)[token])
            assert log_probs[at] == pytest.approx(wanted, abs=1e-5)
            total += wanted
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    metrics = evaluate(tmp_path, [str(tmp_path / "t.txt")], {}, {}).metrics
    tokens = sum(map(len, ids))
    assert metrics["tokens"] == tokens
    assert metrics["pseudo_perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-5)
    assert metrics["pseudo_loss_low"] < metrics["pseudo_loss"] < metrics["pseudo_loss_high"]


def test_a_long_text_is_read_in_parts(tmp_path: Path) -> None:
    saved(tmp_path, hf.BertForMaskedLM)
    part = "the cat sits on the mat and the dog runs in the house ."  # 14 tokens have room
    (tmp_path / "t.txt").write_text(f"{part} {part}\n")
    (tmp_path / "u.txt").write_text(f"{part}\n{part}\n")
    one, two = (
        evaluate(tmp_path, [str(tmp_path / name)], {}, {}).metrics for name in ("t.txt", "u.txt")
    )
    assert one["pseudo_loss"] == pytest.approx(two["pseudo_loss"])
    assert one["tokens"] == two["tokens"] == 28


def test_models_of_other_tasks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "masked").mkdir()
    (tmp_path / "bare").mkdir()
    saved(tmp_path / "masked", hf.BertForMaskedLM)
    saved(tmp_path / "bare")
    # an encoder all the same
    assert SentenceEncoder(load_run(tmp_path / "masked")).encode(["the cat"]).shape == (
        1,
        12,
    )
    with pytest.raises(UsageError, match="a model of feature-extraction cannot fill_masks"):
        seqloom.load(tmp_path / "bare").fill_masks(["[MASK]"])
