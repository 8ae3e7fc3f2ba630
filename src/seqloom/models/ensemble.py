"""A mixture of language models, with weights that are given or tuned on development text.

    p(w | h) = Σ_k λ_k p_k(w | h)

Weights that maximise the likelihood of a text are found by expectation maximisation (Jelinek and Mercer
1980): each token is shared among the members by λ_k p_k, and λ_k becomes its share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from seqloom.config import STRICT
from seqloom.errors import UsageError
from seqloom.models import model_family
from seqloom.models.sizes import Fields, named_sizes
from seqloom.protocols import State, TargetScorer, context_of, target_log_probs
from seqloom.run_file import parse


@final
@dataclass(frozen=True, kw_only=True)
class EnsembleConfig:
    """What a mixture is made of."""

    __pydantic_config__ = STRICT
    vocabulary_size: int
    """Entries of the vocabulary, which all members share."""
    members: tuple[Fields, ...]
    """The configuration of each member, with its `model_type`."""

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise UsageError(
                f"an ensemble must have at least 2 members, but has {len(self.members)}"
            )
        if any(member.get("vocabulary_size") != self.vocabulary_size for member in self.members):
            raise UsageError(
                "the members of an ensemble must share one vocabulary, but their sizes differ"
            )


SIZES, ABOUT = named_sizes("ensemble")


@final
class Ensemble(nn.Module):
    """A `Decodable` and a `TargetScorer`; its state is the tuple of its members' states."""

    carries = True

    def __init__(self, config: EnsembleConfig) -> None:
        super().__init__()
        self.config = config
        members = [_member(dict(content)) for content in config.members]
        self.members = nn.ModuleList(members)
        self.weights: Tensor
        self.register_buffer(
            "weights", torch.full((len(members),), 1 / len(members), dtype=torch.float64)
        )
        self.context: int | None = min(
            (context for model in members if (context := context_of(model)) is not None),
            default=None,
        )

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens `(rows, steps)` -> log-probabilities `(rows, steps, vocabulary)`, and the state after those
        tokens."""

        return self._mixed(lambda model, before: all_log_probs(model, tokens, before), state)

    def log_probs(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens, targets `(rows, steps)` -> log p of each target, and the state after."""
        return self._mixed(
            lambda model, before: target_log_probs(model, tokens, targets, before), state
        )

    def _mixed(
        self, call: Callable[[nn.Module, State], tuple[Tensor, State]], state: State
    ) -> tuple[Tensor, State]:
        """What `call` gives for each member, log-probabilities and a state, as those of the mixture."""
        called = [
            call(model, before)
            for model, before in zip(self.members, state or [None] * len(self.members), strict=True)
        ]
        log_probs = torch.stack([part for part, _ in called])
        weights = self.weights.log().to(log_probs.dtype)
        mixed = (log_probs + weights.view(-1, *[1] * (log_probs.dim() - 1))).logsumexp(dim=0)
        return mixed, tuple(after for _, after in called)


def all_log_probs(model: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """tokens `(rows, steps)` -> log-probabilities `(rows, steps, vocabulary)`, and the state after."""
    logits, state = model(tokens, state)
    # those of a model that knows log p of a target are log p of all
    return logits if isinstance(model, TargetScorer) else logits.log_softmax(dim=-1), state


def _member(content: Fields) -> nn.Module:
    config_class, model_class, _ = model_family(str(content.pop("model_type", None)))
    model: nn.Module = model_class(parse(config_class, content, "model.members."))
    return model


def mixture_weights(log_probs: Tensor, steps: int = 200) -> Tensor:
    """The weights `(members,)` that make the tokens likeliest; log_probs `(tokens, members)` in nats."""
    log_weights = torch.full(
        (log_probs.shape[1],), 1 / log_probs.shape[1], dtype=torch.float64
    ).log()
    exact = log_probs.double()
    for _ in range(steps):
        shares = (exact + log_weights).log_softmax(dim=1)
        log_weights = shares.logsumexp(dim=0) - torch.tensor(float(len(exact))).log()
    return log_weights.exp()


def log_probs_with_gradient(
    model: nn.Module, inputs: Tensor, targets: Tensor, state: State = None
) -> Tensor:
    """log p of each target `(rows, steps)` after its token, with a gradient, which the `log_probs` of models
    and output layers have not. Members are mixed there alone: where no token is possible, a logarithm of a
    sum has no gradient."""
    if isinstance(model, Ensemble):
        parts = [log_probs_with_gradient(member, inputs, targets) for member in model.members]
        mixed = torch.stack(parts)
        return (mixed + model.weights.log().to(mixed.dtype)[:, None, None]).logsumexp(dim=0)
    log_probs, _ = all_log_probs(model, inputs, state)
    chosen: Tensor = log_probs.gather(-1, targets[..., None])[..., 0]
    return chosen
