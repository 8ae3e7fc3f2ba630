"""Studies of single heads: what an answer loses without each, and which of them find repetitions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.matrices import ColourMatrix, matrices_chart
from seqloom.explaining.studies.head_studies import induction_scores, knock_out
from seqloom.protocols import context_of, device_of
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.explain.language import heads_lines, surprisals
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput

LENGTH, ROWS = 40, 16
"""Of the random tokens that are repeated, and how many such rows are read."""


def explain_knock_out(given: ModelInput, look: Look) -> Explanation:
    """Of log p of the text that a model reads or writes, or of an answer (`look.target`)."""
    asked = "log p of the text"
    if given.next_tokens is not None and look.target is None and look.foil is None:

        def score() -> float:
            return -sum(surprisals(given)[1]) * math.log(2)

    elif given.score is not None:
        of = given.score()
        asked = of.asked

        def score() -> float:
            return float(of.of(given.batch)[0].detach())

    else:
        raise UsageError("this model answers nothing that a head could be needed for; see --show")
    falls = knock_out(given.model, score)
    if not falls:
        raise UsageError("a model must have heads of attention to be without one, but has none")
    numbers = {"asked": asked, "score": score(), "falls": {k: v.tolist() for k, v in falls.items()}}
    largest = max(float(values.abs().max()) for values in falls.values())
    lines = [line for part, values in falls.items() for line in heads_lines(part, values)]
    return Explanation(
        show="knockout",
        numbers={**given.numbers, **numbers},
        text=[f"how much {asked} falls without a head", *lines],
        draw=lambda: matrices_chart(
            [
                _heads(part, values, f"fall of {asked}", highest=largest, signed=True)
                for part, values in falls.items()
            ],
            _names(max(values.shape[1] for values in falls.values())),
            title="What is lost without each head",
            subtitle=f"Fall of {asked} where what a head mixes is 0; blue: the head is needed.",
        ),
    )


def _heads(part: str, values: Tensor, name: str, *, highest: float, signed: bool) -> ColourMatrix:
    layers = [f"layer {number}" for number in range(1, len(values) + 1)]
    return ColourMatrix(
        title=part,
        values=values.numpy(),
        rows=layers,
        name=name,
        signed=signed,
        highest=highest,
        texts=[[f"{value:.2f}" for value in row] for row in values.tolist()],
    )


def _names(heads: int) -> list[str]:
    return [f"head {number}" for number in range(1, heads + 1)]


def explain_induction(run: LoadedRun, seed: int = 0) -> Explanation:
    """Of a language model with self-attention. Raises UsageError for another model."""
    model, special_ids = run.model, run.tokenizer.special_ids
    start = list(special_ids.bos)
    spelled = run.tokenizer.token_bytes
    ordinary = [
        token_id
        for token_id in range(len(spelled))
        if spelled[token_id] and token_id not in special_ids.forbidden
    ]
    context = context_of(model)
    length = LENGTH if context is None else min(LENGTH, (context - len(start)) // 2)
    if length < 2 or len(ordinary) < 2:
        raise UsageError("an induction score needs room for four tokens, and two kinds of them")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(ordinary), (ROWS, length), generator=generator)
    ids = torch.tensor(ordinary)[drawn].to(device_of(model))
    try:
        scores, alike = induction_scores(model, lambda tokens: model(tokens, None), ids, start)
    except KeyError:
        raise UsageError(
            "an induction score is of heads of self-attention, but this model has none"
        ) from None
    numbers = {"scores": scores.tolist(), "uniform": alike, "length": length, "rows": ROWS}
    return Explanation(
        show="induction",
        numbers=numbers,
        text=[
            f"a head that looks everywhere alike has {alike:.4f}",
            *heads_lines("self", scores),
        ],
        draw=lambda: matrices_chart(
            [_heads("self-attention", scores, "score", highest=1.0, signed=False)],
            _names(scores.shape[1]),
            title="Induction: do heads find what followed before?",
            subtitle=(
                f"Mean weight on the token after the earlier occurrence, on {ROWS} x {length} random tokens"
                f" that are repeated; {alike:.3f} for a head that looks everywhere alike."
            ),
        ),
    )
