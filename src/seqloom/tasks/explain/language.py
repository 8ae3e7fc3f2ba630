"""What a model that writes says of each token: its surprise, what its layers would say, and where an n-gram
model takes a probability from."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from seqloom.errors import UsageError, printable
from seqloom.explaining.coloured_text import coloured_text
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.matrices import ColourMatrix, matrices_chart
from seqloom.explaining.studies.back_off import back_off
from seqloom.explaining.studies.layer_lens import decoder_stack, lens
from seqloom.models.ngrams.ngram import Ngram
from seqloom.shapes import IGNORE
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput, Predictions

CANDIDATES = 3
"""Likeliest tokens that are named."""
SHOWN_HEADS = 5


def predictions_of(given: ModelInput) -> Predictions:
    """Raises UsageError if the model predicts no next token."""
    if given.next_tokens is None:
        raise UsageError(
            "this picture is of a model that predicts each next token, but this one does not; see --show"
        )
    return given.next_tokens


def surprisals(given: ModelInput) -> tuple[list[str], list[float], Tensor]:
    """The tokens that are predicted, -log2 p of each, and log p of all there `(tokens, vocabulary)`."""
    said = predictions_of(given)
    following = torch.tensor(list(said.following))
    asked = (following != IGNORE).nonzero()[:, 0]
    log_probs = said.log_probs()[asked]
    chosen = log_probs.gather(1, following[asked, None])[:, 0]
    pieces = given.tokenizer.pieces(following[asked].tolist())
    return pieces, (-chosen.double() / math.log(2)).tolist(), log_probs


def explain_surprisal(given: ModelInput, look: Look) -> Explanation:
    """A coloured text; each token also with its rank and the likeliest ones."""
    pieces, bits, log_probs = surprisals(given)
    if not pieces:
        raise UsageError("the text must have a token that is predicted, but it has none")
    order = log_probs.topk(min(CANDIDATES, log_probs.shape[1]), dim=1)
    expected = []
    for ids, values in zip(order.indices.tolist(), order.values.tolist(), strict=True):
        likeliest = zip(given.tokenizer.pieces(ids), map(math.exp, values), strict=True)
        expected.append(", ".join(f"{printable(piece)} {p:.2f}" for piece, p in likeliest))
    total = sum(bits)
    how = f"{len(bits)} tokens, {total / len(bits):.2f} bits each: perplexity {2 ** (total / len(bits)):.1f}."
    numbers = {"tokens": pieces, "surprisal": bits, "expected": expected}
    return Explanation(
        show="surprisal",
        numbers={**given.numbers, **numbers},
        text=[how],
        draw=lambda: coloured_text(
            pieces,
            bits,
            name="surprisal (bits)",
            title="How surprising each token is",
            subtitle=f"-log2 p of each token after those before it. {how}",
            pieces=given.has_pieces,
            notes={"expected": expected},
        ),
    )


def explain_lens(given: ModelInput, look: Look) -> Explanation:
    """Raises UsageError for what is no decoder with norms before each sub-block."""
    said = predictions_of(given)
    decoder_stack(given.model)
    by_layer = lens(given.model, said.log_probs)
    best = by_layer.max(dim=-1)
    probabilities = best.values.double().exp()
    tokens = [given.tokenizer.pieces(row) for row in best.indices.tolist()]
    following = torch.tensor([max(token_id, 0) for token_id in said.following])
    of_text = by_layer.gather(2, following.expand(len(by_layer), -1)[..., None])[..., 0]
    rows = ["embedding", *(f"layer {number}" for number in range(1, len(by_layer)))]
    columns = list(given.sides[said.side])[-len(said.following) :]
    numbers = {
        "tokens": columns,
        "layers": rows,
        "predicted": tokens,
        "probabilities": probabilities.tolist(),
        "log_prob_of_text": of_text.tolist(),
    }
    matrix = ColourMatrix(
        title="the likeliest next token after each layer",
        values=probabilities.numpy()[::-1],
        rows=rows[::-1],
        name="its probability",
        highest=1.0,
        texts=[list(map(printable, row)) for row in reversed(tokens)],
    )
    return Explanation(
        show="lens",
        numbers={**given.numbers, **numbers},
        text=[
            f"{row}: {' '.join(map(printable, line))}"
            for row, line in zip(rows, tokens, strict=True)
        ],
        draw=lambda: matrices_chart(
            [matrix],
            columns,
            title="What the model would say after each layer (logit lens)",
            subtitle="output(norm(h_l)): the top row is the model; lower layers were not trained for it.",
            pieces=given.has_pieces,
        ),
    )


def explain_back_off(given: ModelInput, look: Look) -> Explanation:
    """Raises UsageError for any other model than an n-gram model."""
    if not isinstance(given.model, Ngram):
        raise UsageError(
            "the back-off stack is of an n-gram model, but this is another; see --show"
        )
    ids = [*given.batch.tokens[0].tolist()]
    stacks = back_off(given.model, ids)
    words = given.tokenizer.pieces(ids[1:])
    orders = [level.order for level in stacks[0].levels] if stacks else []
    added, levels, lines = list[list[float]](), list[list[dict[str, object]]](), list[str]()
    for word, stack in zip(words, stacks, strict=True):
        added.append([level.added for level in stack.levels])
        levels.append([level._asdict() for level in stack.levels])
        passed_down = " ".join(f"{level.passed_down:.3f}" for level in stack.levels[:-1])
        about = f"p {stack.probability:.4g}\torder {stack.order_used}"
        lines.append(f"{printable(word)}\t{about}\t{passed_down}")
    total = np.array([stack.probability for stack in stacks])
    parts = np.array(added).T / np.maximum(total, 1e-300)
    matrix = ColourMatrix(
        title="share of p(word) that each order adds",
        values=parts.clip(0, 1),
        rows=[f"{order}-gram" for order in orders],
        name="share of p",
        highest=1.0,
        texts=[list(map(_percent, row)) for row in parts.tolist()],
    )
    numbers = {
        "words": words,
        "probabilities": total.tolist(),
        "order_used": [stack.order_used for stack in stacks],
        "levels": levels,
    }
    return Explanation(
        show="backoff",
        numbers={**given.numbers, **numbers},
        text=["word\tp\tlongest known n-gram\tmass passed down, longest history first", *lines],
        draw=lambda: matrices_chart(
            [matrix],
            words,
            title="Where the n-gram model takes each probability from",
            subtitle="An unknown history passes all of it down; a known one what its discounts leave.",
            pieces=given.has_pieces,
        ),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else ""


def heads_lines(part: str, values: Tensor) -> list[str]:
    """The heads with the largest numbers `(layers, heads)`, for people."""
    every, heads = values.flatten(), values.shape[1]
    order = every.abs().argsort(descending=True)[:SHOWN_HEADS].tolist()
    return [
        f"{float(every[index]):+.4f}\t{part} layer {index // heads + 1}, head {index % heads + 1}"
        for index in order
    ]
