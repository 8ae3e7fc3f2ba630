"""Greedy and beam search beside `generate` of transformers, for GPT-2, T5, BART and Marian with the same
random weights.

There a hypothesis that ends gives up its place in the beam, here with `refill` only. `written_search` is both
ways.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import Tensor

from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forced_end
from seqloom.decoding.strategies import BeamSearch
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.protocols import select_rows

hf = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY, LONGEST, WIDTH = 17, 9, 4
PENALTIES = (0.0, 0.6, 1.0, 2.0)
SEEDS = (0, 1)
LAST_NORM = {"gpt2": "transformer.ln_f", "t5": "decoder.final_layer_norm"}
BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 24,
    "forced_eos_token_id": None,
}


class Family(NamedTuple):
    """A class of transformers, its configuration, and the ids that mean something."""

    kind: Any
    config: Any
    begin: int | None
    end: int
    pad: int


def families() -> dict[str, Family]:
    gpt: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 24,
    }
    t5: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 2,
    }
    ids = {"eos_token_id": 1, "pad_token_id": 0}
    near = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
    bart = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    marian = {
        "pad_token_id": 16,
        "eos_token_id": 0,
        "bos_token_id": None,
        "decoder_start_token_id": 16,
        "scale_embedding": True,
    }
    return {
        "gpt2": Family(hf.GPT2LMHeadModel, hf.GPT2Config(**gpt, **ids, bos_token_id=1), None, 1, 0),
        "t5": Family(
            hf.T5ForConditionalGeneration,
            hf.T5Config(**t5, **ids, **near, decoder_start_token_id=0),
            0,
            1,
            0,
        ),
        "bart": Family(hf.BartForConditionalGeneration, hf.BartConfig(**BART, **bart), 2, 2, 1),
        "marian": Family(
            hf.MarianMTModel,
            hf.MarianConfig(**BART, **marian, activation_function="swish"),
            16,
            0,
            16,
        ),
    }


NAMES = ("gpt2", "t5", "bart", "marian")


@cache
def models(name: str, seed: int) -> tuple[Any, Any]:
    """Theirs, and ours with the same weights."""
    torch.manual_seed(seed)
    family = families()[name]
    theirs = family.kind(family.config).double().eval()
    for part, parameter in theirs.named_parameters():
        if parameter.dim() > 1 and not (
            part.endswith("embed_positions.weight") and name == "marian"
        ):
            torch.nn.init.normal_(parameter, std=0.35)
    sharpened = theirs.get_parameter(
        LAST_NORM.get(name, "model.decoder.layers.1.final_layer_norm") + ".weight"
    )
    # likely and unlikely tokens; of both signs, or a tied output would say the last token again
    torch.nn.init.normal_(sharpened, std=6.0)
    with torch.no_grad():  # and texts that end, some early, some late
        if hasattr(theirs, "final_logits_bias"):
            theirs.final_logits_bias[0, family.end] = 13.0
        else:
            theirs.get_input_embeddings().weight[family.end] *= 1.7
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, read_checkpoint(folder, torch.float64).model


def texts(seed: int) -> list[list[int]]:
    """Eight sources or prompts of 1 to 7 tokens, none of them special."""
    chance = torch.Generator().manual_seed(seed + 100)
    lengths = [7, 1, 3, 5, 2, 7, 4, 6]
    return [torch.randint(3, 16, (length,), generator=chance).tolist() for length in lengths]


def padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor(
        [
            [pad] * (longest - len(row)) * left + [*row] + [pad] * (longest - len(row)) * (not left)
            for row in rows
        ]
    )


def theirs_found(
    name: str, seed: int, rows: list[list[int]], width: int, penalty: float, **more: Any
) -> list[list[int]]:
    family, (model, _) = families()[name], models(name, seed)
    inputs = padded(rows, family.pad, left=family.begin is None)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    at = torch.arange(inputs.shape[1])
    mask = at >= inputs.shape[1] - lengths if family.begin is None else at < lengths
    options: dict[str, Any] = (
        {"early_stopping": "never", "length_penalty": penalty} if width > 1 else {}
    ) | more
    with torch.inference_mode():
        made = model.generate(
            inputs,
            attention_mask=mask.long(),
            num_beams=width,
            do_sample=False,
            max_new_tokens=LONGEST,
            pad_token_id=family.pad,
            eos_token_id=family.end,
            **options,
        )
    new = made[:, inputs.shape[1] if family.begin is None else 1 :].tolist()
    return [row[: row.index(family.end)] if family.end in row else row for row in new]


def ours_found(
    name: str,
    seed: int,
    rows: list[list[int]],
    width: int,
    penalty: float,
    *,
    refill: bool = True,
    early: Literal["never", "likely", "full"] = "never",
    forced: bool = False,
) -> list[Hypothesis]:
    family, (_, model) = families()[name], models(name, seed)
    state = None
    prompts = rows
    if family.begin is not None:
        with torch.inference_mode():
            state = model.encode(padded(rows, -1, left=seed % 2 == 0))  # on which side is the same
        prompts = [[family.begin]] * len(rows)
    found = generate(
        model,
        state,
        prompts,
        [LONGEST] * len(rows),
        GenerationOptions(
            strategy=BeamSearch(
                width=width,
                length_penalty=penalty,
                refill_eos=family.end if refill else None,
                early_stopping=early,
            ),
            eos=family.end,
            pad=-1,
            processors=[forced_end(LONGEST, family.end)] if forced else [],
        ),
    )
    return [hypotheses[0] for hypotheses in found]


@torch.no_grad()
def written_search(
    name: str, seed: int, text: list[int], penalty: float, *, keeps_its_place: bool
) -> list[int]:
    """Beam search in plain words, every prefix read from its start."""
    family, (_, model) = families()[name], models(name, seed)
    first = [family.begin] if family.begin is not None else text
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for step in range(1, LONGEST + 1):
        tokens = torch.tensor([[*first, *new] for _, new in live])
        state = None
        if family.begin is not None:
            state = select_rows(
                model.encode(torch.tensor([text])), torch.zeros(len(live), dtype=torch.long)
            )
        log_probs = model(tokens, state)[0][:, -1].float().log_softmax(-1).double()
        longer = [
            (total + float(log_p), [*new, token])
            for (total, new), row in zip(live, log_probs, strict=True)
            for token, log_p in enumerate(row)
        ]
        longer.sort(key=lambda one: -one[0])
        places = WIDTH - len(ended) if keeps_its_place else WIDTH
        ended += [
            (total / step**penalty, new)
            for total, new in longer[:places]
            if new[-1] == family.end or step == LONGEST
        ]
        going = [
            one
            for one in (longer[:places] if keeps_its_place else longer)
            if one[1][-1] != family.end
        ]
        live = going[:places]
        if not live:
            break
    best = max(ended)[1]
    return best[:-1] if best[-1] == family.end else best


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_theirs(name: str, seed: int) -> None:
    rows = texts(seed)
    found = [one.tokens for one in ours_found(name, seed, rows, 1, 1.0)]
    assert found == theirs_found(name, seed, rows, 1, 1.0)
    assert found[:1] == theirs_found(name, seed, rows[:1], 1, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_beams_are_theirs(name: str) -> None:
    """They end early, late and not at all."""
    lengths = set()
    for seed in SEEDS:
        rows = texts(seed)
        for penalty in PENALTIES:
            for batch in (rows, rows[:1]):
                found = ours_found(name, seed, batch, WIDTH, penalty)
                assert [one.tokens for one in found] == theirs_found(
                    name, seed, batch, WIDTH, penalty
                ), (
                    seed,
                    penalty,
                )
                lengths |= {(len(one.tokens), one.finished) for one in found}
    assert len({length for length, finished in lengths if finished}) >= 2
    assert (LONGEST, False) in lengths


@pytest.mark.parametrize("name", NAMES)
def test_beams_that_stop_early_are_theirs(name: str) -> None:
    """Each way to stop, and the end that is forced on the longest."""
    found: dict[tuple[str, bool], list[list[int]]] = {}
    ways: list[tuple[Literal["never", "likely", "full"], str | bool]] = [
        ("never", "never"),
        ("likely", False),
        ("full", True),
    ]
    for early, theirs in ways:
        for forced in (False, True):
            texts_found = found.setdefault((early, forced), [])
            for seed in SEEDS:
                for penalty in (0.6, 2.0):
                    rows = texts(seed)
                    ours = ours_found(name, seed, rows, WIDTH, penalty, early=early, forced=forced)
                    expected = theirs_found(
                        name,
                        seed,
                        rows,
                        WIDTH,
                        penalty,
                        early_stopping=theirs,
                        forced_eos_token_id=families()[name].end if forced else None,
                    )
                    assert [one.tokens for one in ours] == expected, (early, forced, penalty)
                    texts_found += expected
    assert found["never", False] != found["never", True]
    assert found["full", False] != found["never", False]


def test_either_beam_is_its_own_rule() -> None:
    differ = 0
    for name, penalty, seed in (
        ("gpt2", 0.6, 0),
        ("t5", 1.0, 1),
        ("bart", 1.0, 0),
        ("bart", 2.0, 1),
        ("marian", 0.6, 1),
    ):
        rows = texts(seed)
        found = {}
        for refill in (True, False):
            found[refill] = [
                one.tokens for one in ours_found(name, seed, rows, WIDTH, penalty, refill=refill)
            ]
            assert found[refill] == [
                written_search(name, seed, row, penalty, keeps_its_place=not refill) for row in rows
            ]
        differ += sum(one != its for one, its in zip(found[True], found[False], strict=True))
    assert differ  # it does make a difference
