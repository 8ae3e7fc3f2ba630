"""Texts that models write: from what a request asks for to a job of the engine, and from tokens to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, cast, final

import torch

from seqloom.config import DecodeConfig
from seqloom.data.batching.pair_batches import source_batch
from seqloom.decoding.generate import Observer, Search, search
from seqloom.decoding.hypotheses import DecodingStep, Hypothesis
from seqloom.decoding.logits_processors import most_likely
from seqloom.decoding.long_context import search_windows
from seqloom.decoding.strategies import Strategy
from seqloom.errors import SeqloomError
from seqloom.protocols import State, Tokenizer, context_of, device_of, read_source
from seqloom.runs.decoding_options import generation_options, require_hypotheses
from seqloom.runs.run_folder import LoadedRun
from seqloom.serving.engine import Finish, WritingJob
from seqloom.serving.http_errors import RequestError
from seqloom.tasks.language_modeling.streamed_text import IncrementalText, StreamedText
from seqloom.tasks.translation.translate import longest_output

IMPOSSIBLE = -9999.0
"""Stands for log p of what is impossible, as JSON has no infinity."""


class LogProbs(TypedDict):
    """Numbers of tokens, as /v1/completions shows them."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class NewToken(NamedTuple):
    """A token that was written."""

    sample: int
    id: int
    log_prob: float
    """Under the model, before any rule."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely ids in its place."""


def continuation(
    run: LoadedRun,
    prompt: Sequence[int],
    decode: DecodeConfig,
    new_tokens: int,
    watch: Observer | None,
    finish: Finish,
) -> WritingJob:
    """The job of a language model that goes on with a prompt."""
    options = generation_options(decode, run.tokenizer)

    def searching() -> Search:
        context, device = context_of(run.model), device_of(cast(Any, run.model))
        return search_windows([prompt], new_tokens, options, context, device, watch)

    return WritingJob(search=searching, rows=options.strategy.most_rows, finish=finish)


def output_for_source(
    run: LoadedRun,
    source: Sequence[int],
    decode: DecodeConfig,
    finish: Finish,
    watch: Observer | None = None,
) -> WritingJob:
    """The job of a model of text pairs. Raises UsageError where the source is too long."""
    options, special_ids = generation_options(decode, run.tokenizer), run.tokenizer.special_ids
    longest = longest_output(run.model, len(source), decode, special_ids)
    device = device_of(cast(Any, run.model))

    def first_state() -> State:
        source_row = source_batch([source], special_ids).to(device)
        return read_source(run.decoder(decode), source_row)

    def searching() -> Search:
        return search([[*special_ids.bos]], [longest], options, device, watch)

    rows = options.strategy.most_rows
    return WritingJob(search=searching, first_state=first_state, rows=rows, finish=finish)


def watch_tokens(listen: Callable[[list[NewToken]], None], top: int | None) -> Observer:
    """Tells each new token of a greedy search, or of samples, with the `top` most likely in its place; None:
    without any numbers, which takes time."""

    def watch(step: DecodingStep) -> None:
        ids, parents = step.next_tokens.ids, step.next_tokens.parents
        if top is None:
            pairs = zip(step.extended.sample_index.tolist(), ids.tolist(), strict=True)
            listen([NewToken(sample, id, 0.0) for sample, id in pairs])
            return
        log_probs = step.log_probs if parents is None else step.log_probs[parents]
        chosen = log_probs.gather(1, ids[:, None])[:, 0].tolist()
        alternatives = top_of(log_probs, top)
        samples = step.extended.sample_index.tolist()
        tokens = zip(
            samples, ids.tolist(), map(bounded_log_prob, chosen), alternatives, strict=True
        )
        listen([NewToken(*token) for token in tokens])

    return watch


def top_of(log_probs: torch.Tensor, top: int) -> list[tuple[tuple[int, float], ...]]:
    """log_probs `(rows, vocabulary)` -> of each row its most likely ids, best first."""
    if not top:
        return [()] * len(log_probs)
    values, ids = most_likely(log_probs, min(top, log_probs.shape[1]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [tuple(zip(row, map(bounded_log_prob, some), strict=True)) for row, some in rows]


def bounded_log_prob(log_prob: float) -> float:
    return max(log_prob, IMPOSSIBLE)


def hypotheses_of(found: list[list[Hypothesis]], strategy: Strategy) -> Sequence[Hypothesis]:
    """Those of the only prompt of a search. Raises RequestError where the rules left none."""
    try:
        return require_hypotheses(found[0], strategy)
    except SeqloomError as error:
        raise RequestError(400, str(error)) from None


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """What a token spells. One that is part of a character is `bytes:\\xe2`, so that no two look alike."""
    spelled = tokenizer.token_bytes[token]
    try:
        return spelled.decode() or tokenizer.pieces([token])[0]
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


@final
class WrittenText:
    """One output while it is written, with the numbers of its tokens."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str], offset: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._all = IncrementalText(tokenizer, prompt)
        self._shown = StreamedText(tokenizer, prompt, stop)
        self._offset = offset
        """Characters before the next token."""
        self._told = 0
        """Tokens that `new_logprobs` has given."""
        self.pieces: list[str] = []
        self.tokens: list[NewToken] = []
        self.offsets: list[int] = []
        self.ending: list[NewToken] = []
        """The token that ended the text, where one did: it has a log p and spells nothing."""

    def add(self, token: NewToken) -> str:
        """The text that is certain now."""
        self.offsets.append(self._offset)
        self._offset += len(self._all.add(token.id))
        self.tokens.append(token)
        return self._keep(self._shown.add(token.id))

    def end(self) -> str:
        return self._keep(self._shown.rest())

    def _keep(self, piece: str) -> str:
        if piece:
            self.pieces.append(piece)
        return piece

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def logprobs(self, first: int = 0) -> LogProbs:
        """Of all tokens from this one on, as /v1/completions shows them: that of the end too, as OpenAI has
        it, and lm-evaluation-harness counts on."""
        offsets = [*self.offsets, *(self._offset for _ in self.ending)]
        return logprobs_of(self._tokenizer, [*self.tokens, *self.ending][first:], offsets[first:])

    def new_logprobs(self) -> LogProbs:
        """Of the tokens since the last call."""
        first, self._told = self._told, len(self.tokens) + len(self.ending)
        return self.logprobs(first)


def logprobs_of(
    tokenizer: Tokenizer, tokens: Sequence[NewToken], offsets: Sequence[int]
) -> LogProbs:
    top_logprobs: list[dict[str, float] | None] = []
    for token in tokens:
        top: dict[str, float] = {}
        for id, log_prob in token.top:
            top.setdefault(token_text(tokenizer, id), log_prob)
        top_logprobs.append(top)
    return {
        "tokens": [token_text(tokenizer, token.id) for token in tokens],
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": top_logprobs,
        "text_offset": list(offsets),
    }


def both(first: LogProbs, second: LogProbs) -> LogProbs:
    """Those of the one text after those of the other."""
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }
