"""A text as a language model reads it, for its pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seqloom.data.batching.pair_batches import pad
from seqloom.errors import UsageError, printable
from seqloom.models.ensemble import log_probs_with_gradient
from seqloom.models.prompt_tuning import PromptTuned
from seqloom.protocols import (
    EncodedBatch,
    SpecialIds,
    State,
    device_of,
    next_logits,
    target_log_probs,
)
from seqloom.runs.run_folder import LoadedRun
from seqloom.shapes import IGNORE
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import (
    ModelInput,
    Predictions,
    Score,
    single_row,
    words_of,
)


def explained_input(run: LoadedRun, text: str, look: Look) -> ModelInput:
    """The text, and what `look.target` says that follows it."""
    tokenizer, model = run.tokenizer, run.model
    special_ids = tokenizer.special_ids
    (ids,) = tokenizer.encode([text])
    bos = list(special_ids.bos)
    row = [*bos, *ids]
    device = device_of(model)
    batch = single_row(row, device)
    following = [] if look.target is None else continuation(run, text, look.target)
    whole = single_row([*row, *following], device).tokens
    pieces = tokenizer.pieces([*row, *following])
    if isinstance(model, PromptTuned):
        prompt = [f"[{number}]" for number in range(1, model.length + 1)]
        pieces = [*pieces[: len(bos)], *prompt, *pieces[len(bos) :]]

    def log_probs() -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(whole, None)[0][0]
            return logits.float().log_softmax(dim=-1).cpu()

    return ModelInput(
        model=model,
        tokenizer=tokenizer,
        batch=batch,
        sides={"self": pieces},
        read=lambda: model(whole, None),
        words=lambda: words_of(tokenizer, text, len(ids), first=len(bos)),
        score=lambda: _score(run, row, text, look),
        next_tokens=Predictions("self", log_probs, [*row[1:], *following, IGNORE]),
    )


def continuation(run: LoadedRun, text: str, target: str) -> list[int]:
    """The ids of a target after a text, where a space stands between them. Raises UsageError if it has
    none."""
    tokenizer = run.tokenizer
    (alone,), (joined,) = tokenizer.encode([text]), tokenizer.encode([f"{text} {target}"])
    ids = joined[len(alone) :] if joined[: len(alone)] == alone else tokenizer.encode([target])[0]
    if not ids:
        raise UsageError(f"a target must have a token, but {printable(repr(target))} has none")
    return ids


def _score(run: LoadedRun, row: Sequence[int], text: str, look: Look) -> Score:
    """log p of the target minus log p of the foil; by default of the two likeliest next tokens."""
    if look.target is None:
        device = device_of(run.model)
        with torch.inference_mode():
            logits, _ = next_logits(run.model, torch.tensor([row], device=device), None)
        best = logits[0].topk(2).indices.tolist()
        targets = [[best[0]], [best[1]]] if look.foil is None else [[best[0]]]
    else:
        targets = [continuation(run, text, look.target)]
    if look.foil is not None:
        targets.append(continuation(run, text, look.foil))
    special_ids = run.tokenizer.special_ids
    names = [printable("".join(run.tokenizer.pieces(ids)).strip()) for ids in targets]
    asked = " - ".join(f"log p({name})" for name in names)
    return Score(asked, log_prob_difference(run.model, targets, special_ids))


def log_prob_difference(
    model: torch.nn.Module, targets: Sequence[Sequence[int]], special_ids: SpecialIds
) -> Callable[[EncodedBatch], Tensor]:
    """log p of the first target after each row, minus that of the second where there is one."""

    def difference(batch: EncodedBatch) -> Tensor:
        totals = [after_rows(model, batch.tokens, target, special_ids) for target in targets]
        return totals[0] - totals[1] if len(totals) > 1 else totals[0]

    return difference


def after_rows(
    model: torch.nn.Module, rows: Tensor, target: Sequence[int], special_ids: SpecialIds
) -> Tensor:
    """log p of a target after each row `(rows, steps)`, -1 at the end of a shorter one: `(rows,)`."""
    inputs, wanted = [], []
    for row in rows.tolist():
        ids = [token_id for token_id in row if token_id >= 0]
        inputs.append([*ids, *target[:-1]])
        wanted.append([IGNORE] * (len(ids) - 1) + list(target))
    tokens = pad(inputs, special_ids.pad).to(rows.device)
    targets = pad(wanted, IGNORE).to(rows.device)
    return sums_of_log_probs(model, tokens, targets, None)


def sums_of_log_probs(
    model: torch.nn.Module, tokens: Tensor, targets: Tensor, state: State
) -> Tensor:
    """Of each row Σ log p of its targets that are not IGNORE: `(rows,)`."""
    if not torch.is_grad_enabled():
        return target_log_probs(model, tokens, targets, state)[0].sum(dim=1)
    trained = targets != IGNORE
    chosen = log_probs_with_gradient(model, tokens, targets.where(trained, 0), state)
    # where nothing is asked, log p may be minus infinity
    return chosen.where(trained, 0).sum(dim=1)
