"""How hypotheses continue, step by step: beam search keeps the most likely, sampling draws. The loop
(`generate.py`) needs nothing else of them.

Sampling has no generator that could be disturbed. The random number of a row is a function of (seed, sample,
step), the counter-based SplitMix64 (Steele, Lea and Flood 2014), so a text does not depend on what else is in
the batch, nor on the order of the prompts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.hypotheses import NAN_LOGITS, Hypothesis, LiveHypotheses, NextTokens
from seqloom.decoding.logits_processors import most_likely
from seqloom.errors import SeqloomError, UsageError

Ended = Sequence[Sequence[Hypothesis]]
"""The hypotheses of each input that have ended."""
Integers = TypeVar("Integers", NDArray[np.int64], Tensor)


@final
@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Keeps the `width` most likely hypotheses of each input; one that ends keeps its place in the beam until
    the end (Bahdanau et al. 2015), or, where `refill_eos` is given, the next best one takes it, and only the
    first `width` may end (transformers, fairseq).

    With several `groups` it is diverse beam search (Vijayakumar et al. 2018, arXiv:1610.02424, algorithm 1,
    Hamming diversity): each group is a beam of width / groups, and for the choice, though not for the score,
    a token costs it `diversity` nats for every hypothesis of the groups before it that chose this token at
    this step. The best of all groups come first, then their seconds; what several groups found comes once.
    """

    width: int = 1
    length_penalty: float = 1.0
    """α."""
    n_best: int = 1
    groups: int = 1
    diversity: float = 0.5
    """λ."""
    refill_eos: int | None = None
    """The end mark, where hypotheses that end with it give up their places."""
    early_stopping: Literal["never", "likely", "full"] = "never"
    """When a whole beam is pruned though something better might come (`DecodeConfig.early_stopping`)."""
    forced: int = 0
    """Tokens at the beginning of each output that the length counts, though they are read with the prompt."""
    seed: ClassVar[None] = None
    """Nothing is drawn."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.width:
            raise UsageError(
                f"n_best must be from 1 to the beam's width {self.width}, but is {self.n_best}"
            )
        if not 0 <= self.length_penalty <= 10 or not 0 <= self.diversity < math.inf:
            given = f"{self.length_penalty} and {self.diversity}"
            raise UsageError(
                f"length_penalty must be from 0 to 10 and diversity at least 0, but they are {given}"
            )
        if self.groups < 1 or self.width % self.groups:
            raise UsageError(
                f"groups must divide the beam's width {self.width}, but are {self.groups}"
            )

    @property
    def rows_per_input(self) -> int:
        """Rows that an input begins with."""
        return self.groups

    @property
    def most_rows(self) -> int:
        """Rows of an input that are decoded at once."""
        return self.width

    @property
    def fewest(self) -> int:
        """Hypotheses that an input must have."""
        return 1

    @property
    def in_order(self) -> bool:
        """Whether a token is certain once it is chosen."""
        return self.width == 1

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest next tokens of a row it looks at; None for all."""
        if self.groups > 1:
            return None
        # where ended hypotheses give up their places, `width` of twice as many cannot have ended
        return self.width if self.refill_eos is None or self.width == 1 else 2 * self.width

    @property
    def group_width(self) -> int:
        return self.width // self.groups

    def single(self) -> BeamSearch:
        """The same for one output, which is of one group."""
        return replace(self, n_best=1, groups=1, width=self.group_width)

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / float(max(length + self.forced, 1) ** self.length_penalty)

    def choose(
        self,
        live: LiveHypotheses,
        _: Tensor,
        processed: Tensor,
        ended: Ended,
        ids: Tensor | None = None,
    ) -> NextTokens:
        """For each input its best continuations, as many as places are free in its beam; impossible ones
        never. `ids` are those of the columns, where these are not the whole vocabulary."""
        if self.groups == 1:
            return _best_continuations(self, live, processed, ended, ids)
        parents, tokens = self._choose_by_group(live, processed, ended)
        return NextTokens(parents, tokens, live.sum_log_probs[parents] + processed[parents, tokens])

    def _choose_by_group(
        self, live: LiveHypotheses, processed: Tensor, ended: Ended
    ) -> tuple[Tensor, Tensor]:
        costs = torch.zeros(
            len(ended), processed.shape[1], dtype=processed.dtype, device=processed.device
        )
        chosen = []
        for group in range(self.groups):
            rows = (live.sample_index == group).nonzero()[:, 0]
            if not len(rows):
                continue
            members = live.select(rows)
            parents, ids, _ = _best_continuations(
                self.single(),
                members,
                processed[rows] - costs[members.input_index],
                [self._of_group(hypotheses, group) for hypotheses in ended],
            )
            parents = rows if parents is None else rows[parents]
            # from now on these tokens cost more, for the groups that choose after this one
            cost = costs.new_tensor(self.diversity)
            costs.index_put_((live.input_index[parents], ids), cost, accumulate=True)
            chosen.append((parents, ids))
        parents, ids = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        order = live.input_index[parents].argsort(stable=True)
        return parents[order], ids[order]

    def _of_group(self, hypotheses: Sequence[Hypothesis], group: int) -> Sequence[Hypothesis]:
        if self.groups == 1:
            return hypotheses
        return [hypothesis for hypothesis in hypotheses if hypothesis.sample == group]

    def prunable(self, live: LiveHypotheses, limits: Tensor, ended: Ended, going: Tensor) -> Tensor:
        """`(rows,)`: rows that cannot become better than what is returned already of their input, or of their
        group; `going` are the rows that did not just end."""
        # the bar of a beam is the worst score that would be returned of it: none while it has too few that
        # ended
        wanted = min(self.n_best, self.group_width)
        bars = []
        for hypotheses in ended:
            for group in range(self.groups):
                scores = sorted((h.score for h in self._of_group(hypotheses, group)), reverse=True)
                bar = scores[wanted - 1] if len(scores) >= wanted else -math.inf
                bars.append(bar)
        beams = live.input_index
        if self.groups > 1:
            beams = beams * self.groups + live.sample_index
        # Σ log p can only fall and the length only grow to its limit, so this is the best possible score
        lengths = (limits[live.input_index] + self.forced).double()
        reachable = live.sum_log_probs / lengths**self.length_penalty
        prunable = reachable <= torch.tensor(bars, dtype=torch.float64, device=beams.device)[beams]
        if self.early_stopping != "never":
            prunable = prunable | self._stopped_early(live, beams, ended)
        if self.refill_eos is None:
            return prunable
        # a row that leaves would leave its place to a worse one: only whole beams are pruned
        promising = torch.zeros(len(bars), dtype=torch.bool, device=beams.device)
        promising.index_fill_(0, beams[~prunable & going], True)
        return ~promising[beams]

    def _stopped_early(self, live: LiveHypotheses, beams: Tensor, ended: Ended) -> Tensor:
        """`(rows,)`: rows of beams that have as many ended hypotheses as places, and, for "likely", no row
        that would be better than the worst of these if it ended now."""
        worst = []
        for hypotheses in ended:
            for group in range(self.groups):
                scores = sorted((h.score for h in self._of_group(hypotheses, group)), reverse=True)
                full = len(scores) >= self.group_width
                worst.append(scores[self.group_width - 1] if full else -math.inf)
        bars = torch.tensor(worst, dtype=torch.float64, device=beams.device)[beams]
        if self.early_stopping == "full":
            return bars > -math.inf
        now = live.sum_log_probs / float(
            (live.tokens.shape[1] + self.forced) ** self.length_penalty
        )
        return now <= bars

    def ranked(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What is returned, best first; what several groups found is returned once."""
        best = sorted(hypotheses, key=lambda h: -h.score)
        if self.groups > 1:
            unique: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
            for hypothesis in best:
                unique.setdefault((tuple(hypothesis.tokens), hypothesis.finished), hypothesis)
            # the best of each group, then the seconds of each group, and so on
            of_group: Counter[int] = Counter()
            ranks = []
            for hypothesis in unique.values():
                ranks.append((of_group[hypothesis.sample], hypothesis))
                of_group[hypothesis.sample] += 1
            best = [hypothesis for _, hypothesis in sorted(ranks, key=lambda ranked: ranked[0])]
        return best[: self.n_best]


def _best_continuations(
    beam: BeamSearch,
    live: LiveHypotheses,
    processed: Tensor,
    ended: Ended,
    ids: Tensor | None = None,
) -> NextTokens:
    """For each input its best continuations, of a beam without groups."""
    width, candidates = beam.width, beam.likeliest or beam.width
    values, tokens = _likeliest(processed, ids, candidates)
    k = tokens.shape[1]
    if width == 1:
        greedy = NextTokens(None, tokens[:, 0], live.sum_log_probs + values[:, 0])
        return _without_impossible(greedy, values)
    # the k best tokens of each row contain the k best continuations of an input: a table with a line per
    # input, in NumPy, which needs a third of torch's time for so few numbers
    totals: NDArray[Any] = (live.sum_log_probs[:, None] + values).cpu().numpy()  # (rows, k)
    input_of_row = live.input_index.tolist()
    sizes = Counter(input_of_row)  # rows of each input, in the order of the inputs
    first_rows = [0, *itertools.accumulate(sizes.values())][: len(sizes)]
    most_rows = max(sizes.values(), default=0)
    if most_rows * len(sizes) == len(input_of_row):
        table = totals.reshape(len(sizes), most_rows * k)
    else:  # inputs have different numbers of rows: fill up with -inf
        lines = np.full((len(sizes), most_rows, k), -math.inf)
        line = [number for number, size in enumerate(sizes.values()) for _ in range(size)]
        lines[line, [row - first_rows[number] for row, number in enumerate(line)]] = totals
        table = lines.reshape(len(sizes), most_rows * k)
    if np.isnan(table).any():
        raise SeqloomError(NAN_LOGITS)
    # the best first; of equals the first
    index = (-table).argsort(axis=1, kind="stable")[:, :candidates]
    best = table[np.arange(len(sizes))[:, None], index]
    parents = np.asarray(first_rows)[:, None] + index // k
    # clamped: filled-up rows, which are never taken
    chosen = tokens.cpu().numpy()[np.minimum(parents, len(tokens) - 1), index % k]
    rank = np.arange(best.shape[1])
    if beam.refill_eos is None:
        taken = rank < np.asarray([[width - len(ended[number])] for number in sizes])
    else:  # the first `width` may end, and `width` that do not end live on
        ends = chosen == beam.refill_eos
        taken = np.where(ends, rank < width, (~ends).cumsum(1) <= width)
    taken &= best > -math.inf
    following = (torch.from_numpy(part[taken]) for part in (parents, chosen, best))
    return NextTokens(*(part.to(tokens.device) for part in following))


def _likeliest(log_probs: Tensor, ids: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k best columns and their ids, or all columns where there are no more."""
    if ids is None:
        return most_likely(log_probs, min(k, log_probs.shape[1]))
    if ids.shape[1] <= k:
        return log_probs, ids
    values, columns = most_likely(log_probs, k)
    return values, ids.gather(1, columns)


def _without_impossible(tokens: NextTokens, log_probs: Tensor) -> NextTokens:
    """The rows that any token may follow, given their log-probabilities `(rows, columns)`. Raises
    SeqloomError at NaN."""
    # mostly all: the smallest of the best is no NaN then, and not -inf
    best = log_probs if log_probs.shape[1] == 1 else log_probs.amax(dim=1)
    if best.min().item() > -math.inf:
        return tokens
    if bool(best.isnan().any()):
        raise SeqloomError(NAN_LOGITS)
    possible = (best.view(-1) > -math.inf).nonzero()[:, 0]
    return NextTokens(possible, tokens.ids[possible], tokens.sum_log_probs[possible])


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws `samples` texts for each input from what the logits processors leave of the model's
    distribution."""

    seed: int = 0
    samples: int = 1
    likeliest = None
    """It looks at all tokens."""
    in_order = True
    """Each token is certain once it is drawn."""

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.seed < 2**63:
            raise UsageError(
                f"samples must be at least 1 and the seed from 0 to 2^63 - 1, but they are {self.samples} and"
                f" {self.seed}"
            )

    @property
    def rows_per_input(self) -> int:
        """Rows that an input begins with."""
        return self.samples

    @property
    def most_rows(self) -> int:
        """Rows of an input that are decoded at once."""
        return self.samples

    @property
    def fewest(self) -> int:
        """Hypotheses that an input must have."""
        return self.samples

    def single(self) -> Sampling:
        """The same for one output."""
        return replace(self, samples=1)

    def score(self, log_probability: float, _: int) -> float:
        return log_probability

    def choose(
        self,
        live: LiveHypotheses,
        log_probs: Tensor,
        processed: Tensor,
        _: Ended,
        ids: Tensor | None = None,
    ) -> NextTokens:
        """One token for each row. A row that no token may follow dies. `ids` as for `BeamSearch`."""
        drawn = draw(processed, uniform(self.seed, live.sample_index, live.new_length))[:, None]
        totals = live.sum_log_probs + log_probs.gather(1, drawn)[:, 0]
        tokens = drawn if ids is None else ids.gather(1, drawn)
        return _without_impossible(NextTokens(None, tokens[:, 0], totals), processed)

    def prunable(self, live: LiveHypotheses, _: Tensor, __: Ended, ___: Tensor) -> Tensor:
        """No row: sampling never prunes."""
        return torch.zeros_like(live.input_index, dtype=torch.bool)

    def ranked(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What is returned, in the order of the samples."""
        return sorted(hypotheses, key=lambda h: h.sample)


Strategy = BeamSearch | Sampling


def strategy_of(decode: DecodeConfig, eos: int | None = None, forced: int = 0) -> Strategy:
    """The strategy that the settings describe; `eos` is the id that ends a text, `forced` as in
    `BeamSearch`."""
    if decode.strategy == "greedy":
        return BeamSearch(length_penalty=decode.length_penalty)
    if decode.strategy == "sample":
        return Sampling(seed=decode.seed, samples=decode.n_best)
    return BeamSearch(
        width=decode.beam,
        length_penalty=decode.length_penalty,
        n_best=decode.n_best,
        groups=decode.groups,
        diversity=decode.diversity,
        refill_eos=eos if decode.refill else None,
        early_stopping=decode.early_stopping,
        forced=forced,
    )


def draw(log_probs: Tensor, u: Tensor) -> Tensor:
    """The first id whose share of the cumulated probability exceeds u `(rows,)`: ids `(rows,)`. Shares are
    added in float64, and what is impossible is never drawn, unless nothing is possible."""
    # softmax first: exp is slow at -inf, and so is a cumsum that changes the type
    shares = log_probs.softmax(dim=-1).double().cumsum(dim=-1)
    total = shares[:, -1]
    # below the total, since rounding must not lead past the last possible id
    point = torch.minimum(u * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(shares, point[:, None], right=True)[:, 0].clamp(
        max=log_probs.shape[1] - 1
    )


def uniform(seed: int, samples: Tensor, steps: Tensor) -> Tensor:
    """A number of [0, 1) for each row, float64, a multiple of 2^-53: step `(rows,)` of the stream of (seed,
    sample `(rows,)`)."""
    if samples.device.type == "cpu":  # NumPy needs a third of the time for a few rows
        bits = _random_bits(np.asarray(seed, np.int64), samples.numpy(), steps.numpy())
        return torch.from_numpy(bits * 2.0**-53)
    return (
        _random_bits(torch.tensor(seed, device=samples.device), samples, steps).double() * 2.0**-53
    )


def _random_bits(seed: Integers, samples: Integers, steps: Integers) -> Integers:
    """53 bits, in the int64 of NumPy or torch."""
    with np.errstate(over="ignore"):  # it wraps around
        stream = _mix(_mix(seed + _GAMMA) + (samples + 1) * _GAMMA)
        return _shift_right(_mix(stream + (steps + 1) * _GAMMA), 11)


def _mix(values: Integers) -> Integers:
    """The finaliser of SplitMix64, in int64 that wraps around."""
    values = (values ^ _shift_right(values, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    values = (values ^ _shift_right(values, 27)) * (0x94D049BB133111EB - 2**64)
    return values ^ _shift_right(values, 31)


def _shift_right(values: Integers, bits: int) -> Integers:
    """With zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


_GAMMA = 0x9E3779B97F4A7C15 - 2**64
