"""Completions of prompts by a language model, as OpenAI's clients ask for them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NotRequired, TypedDict, final

from seqloom.config import DecodeConfig
from seqloom.decoding.strategies import Strategy, strategy_of
from seqloom.errors import SeqloomError
from seqloom.json_values import several_texts
from seqloom.protocols import context_of
from seqloom.run_file import parse
from seqloom.runs.run_folder import LoadedRun
from seqloom.serving.answering import Answering, Event
from seqloom.serving.engine import Job, ReadingJob
from seqloom.serving.http_errors import RequestError, invalid
from seqloom.serving.limits import ServerLimits
from seqloom.serving.metrics import Metrics
from seqloom.serving.prompt_scores import ScoredPrompt, score_prompts
from seqloom.serving.routes.bodies import SamplingFields
from seqloom.serving.served_models import ServedModel
from seqloom.serving.writing import (
    LogProbs,
    NewToken,
    WrittenText,
    both,
    continuation,
    hypotheses_of,
    logprobs_of,
    watch_tokens,
)
from seqloom.tasks.language_modeling.generate import prompt_ids


class Choice(TypedDict):
    """One output, or a piece of it."""

    index: int
    text: str
    logprobs: LogProbs | None
    finish_reason: str | None


class CompletionObject(TypedDict):
    """An answer, or a piece of one."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    seed: NotRequired[int]
    usage: NotRequired[dict[str, int]]


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for completions, with all defaults filled in."""

    served: ServedModel
    prompts: Sequence[Sequence[int]]
    """As they were given, without what begins a text."""
    decode: DecodeConfig
    new_tokens: int
    echo: bool = False
    logprobs: int | None = None
    """How many alternatives are shown; None: no numbers at all."""
    stream: bool = False
    include_usage: bool = False

    @property
    def run(self) -> LoadedRun:
        return self.served.text_run

    @cached_property
    def strategy(self) -> Strategy:
        return strategy_of(self.decode)


def decode_config(asked: SamplingFields, limits: ServerLimits) -> DecodeConfig:
    """What a request says about sampling. Raises RequestError for what does not go together."""
    stops = several_texts([] if asked.stop is None else asked.stop)
    if len(stops) > limits.stop_strings:
        raise invalid("stop", f"must be at most {limits.stop_strings} strings, but is {len(stops)}")
    if any(not 1 <= len(stop) <= limits.stop_length for stop in stops):
        raise invalid("stop", f"must be of strings of 1 to {limits.stop_length} characters")
    n, beams = asked.n or 1, asked.num_beams or 1
    if n > limits.rows:
        raise invalid("n", f"must be at most {limits.rows}, but is {n}")
    if beams > limits.rows:
        raise invalid("num_beams", f"must be at most {limits.rows}, but is {beams}")
    content: dict[str, object] = {"stop": stops, "n_best": n}
    if asked.repetition_penalty is not None:
        content["repetition_penalty"] = asked.repetition_penalty
    sampling = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "min_p": asked.min_p,
    }
    if beams > 1:
        for name, value in (*sampling.items(), ("seed", asked.seed)):
            if value is not None and (name, value) != ("temperature", 0):
                raise invalid(name, "changes nothing in a beam search; leave it or num_beams out")
        if n > beams:
            raise invalid("n", f"must be at most num_beams {beams}, but is {n}")
        content |= {"strategy": "beam", "beam": beams}
    elif asked.temperature == 0 and n == 1:
        content |= {"strategy": "greedy"}
    else:
        seed = secrets.randbelow(2**63) if asked.seed is None else asked.seed
        given = {name: value for name, value in sampling.items() if value is not None}
        content |= {"strategy": "sample", "seed": seed, **given}
    try:
        return parse(DecodeConfig, content, "")
    except SeqloomError as error:
        raise RequestError(400, str(error)) from None


def new_tokens_of(given: int | None, limits: ServerLimits, param: str = "max_tokens") -> int:
    """Raises RequestError for more than the server writes."""
    if given is None:
        return min(limits.default_new_tokens, limits.new_tokens)
    if given > limits.new_tokens:
        raise invalid(param, f"must be at most {limits.new_tokens}, but is {given}")
    return given


def checked_prompts(
    run: LoadedRun, prompts: Sequence[str] | Sequence[Sequence[int]], limits: ServerLimits
) -> list[list[int]]:
    """The ids of each prompt. Raises RequestError for too many, too long ones, and ids that there are not."""
    if not 1 <= len(prompts) <= limits.inputs:
        raise invalid("prompt", f"must be 1 to {limits.inputs} prompts, but is {len(prompts)}")
    size, found = run.tokenizer.vocabulary_size, []
    for prompt in prompts:
        if isinstance(prompt, str):
            (ids,) = run.tokenizer.encode([prompt])
        else:
            ids = list(prompt)
            if not all(0 <= id < size for id in ids):
                raise invalid("prompt", f"must be of ids from 0 to {size - 1}, but one is another")
        if len(ids) > limits.prompt_tokens:
            raise invalid(
                "prompt", f"must have at most {limits.prompt_tokens} tokens, but has {len(ids)}"
            )
        found.append(ids)
    return found


def read_ids(run: LoadedRun, ids: Sequence[int]) -> list[int]:
    """What the model reads: a mark that begins a text before it, unless it is there. Raises UsageError where
    that is nothing."""
    bos = list(run.tokenizer.special_ids.bos)
    if bos and list(ids[: len(bos)]) == bos:
        return list(ids)
    return prompt_ids(run.tokenizer, ids)


@final
class Completions:
    """The answer to one request."""

    def __init__(self, asked: Asked, metrics: Metrics) -> None:
        self.asked, self.metrics = asked, metrics
        self.answering = Answering(asked.served)
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._started = time.monotonic()
        self._first = True
        self.outputs: list[list[WrittenText]] = []
        """Of each prompt its samples."""
        self._prompt_tokens: list[list[NewToken]] = [[] for _ in asked.prompts]
        self._finished: list[list[str]] = []

    def submit(self) -> None:
        """Gives the jobs to the engine: of each prompt one that writes, and one that reads where its numbers
        are wanted. Raises RequestError."""
        asked, run = self.asked, self.asked.run
        jobs: list[Job] = []
        for number, given in enumerate(asked.prompts):
            read = self._read_ids(given)
            offset = len(run.tokenizer.decode(given)) if asked.echo else 0
            samples = max(asked.decode.n_best, 1)
            self.outputs.append(
                [
                    WrittenText(run.tokenizer, given, asked.decode.stop, offset)
                    for _ in range(samples)
                ]
            )
            self._finished.append(["length"] * samples)
            if asked.new_tokens:
                jobs.append(self._writing(number, read))
            if asked.echo and asked.logprobs is not None:
                jobs.append(self._reading(number, read))
        self.answering.submit(jobs)
        self.metrics.prompt_tokens += sum(map(len, asked.prompts))

    def _read_ids(self, given: Sequence[int]) -> list[int]:
        try:
            return read_ids(self.asked.run, given)
        except SeqloomError as error:
            raise invalid("prompt", str(error)) from None

    def _writing(self, number: int, read: Sequence[int]) -> Job:
        asked, watch = self.asked, None
        if asked.strategy.in_order and (asked.stream or asked.logprobs is not None):
            watch = watch_tokens(self.answering.listener(2 * number), asked.logprobs)
        finish = self.answering.finisher(2 * number)
        try:
            return continuation(asked.run, read, asked.decode, asked.new_tokens, watch, finish)
        except SeqloomError as error:
            raise RequestError(400, str(error)) from None

    def _reading(self, number: int, read: Sequence[int]) -> Job:
        run, context = self.asked.run, context_of(self.asked.run.model)
        if context is not None and len(read) > context:
            raise invalid(
                "prompt",
                f"must have at most the {context} tokens that the model reads where echo and logprobs are"
                f" wanted, but has {len(read)}",
            )

        def score(prompts: Sequence[ScoredPrompt]) -> list[list[NewToken]]:
            return score_prompts(run, prompts)

        return ReadingJob(
            read=score,
            together="score",
            inputs=[ScoredPrompt(read, self.asked.logprobs or 0)],
            tokens=len(read),
            finish=self.answering.finisher(2 * number + 1),
        )

    async def whole(self) -> CompletionObject:
        """The answer in one object."""
        async for event in self.answering.events():
            self._take(event)
        choices = [
            self._choice(prompt, sample)
            for prompt, outputs in enumerate(self.outputs)
            for sample in range(len(outputs))
        ]
        return self._object(choices) | {"usage": self.usage}

    async def pieces(self) -> AsyncIterator[CompletionObject]:
        """The answer in pieces: texts as they come, then how each ended."""
        asked = self.asked
        if asked.echo:
            for prompt, ids in enumerate(asked.prompts):
                text = asked.run.tokenizer.decode(ids)
                for sample in range(len(self.outputs[prompt])):
                    yield self._piece(prompt, sample, text)
        async for event in self.answering.events():
            for sample, piece in self._take(event):
                yield self._piece(event.job // 2, sample, piece)
            if event.final:
                for sample, reason in enumerate(self._finished[event.job // 2]):
                    yield self._piece(event.job // 2, sample, "", reason)
        if asked.include_usage:
            yield self._object([]) | {"usage": self.usage}

    def _take(self, event: Event) -> list[tuple[int, str]]:
        """What an event adds to the text of each sample."""
        prompt = event.job // 2
        if event.job % 2:
            (self._prompt_tokens[prompt],) = event.content
            return []
        if self._first:
            self._first = False
            self.metrics.first_token(time.monotonic() - self._started)
        outputs, asked = self.outputs[prompt], self.asked
        eos = asked.run.tokenizer.special_ids.eos
        if not event.final:
            added = []
            for token in event.content:
                if token.id == eos:
                    outputs[token.sample].ending.append(token)
                else:
                    added.append((token.sample, outputs[token.sample].add(token)))
            return [(sample, piece) for sample, piece in added if piece]
        added = []
        hypotheses = hypotheses_of(event.content, asked.strategy)
        for sample, hypothesis in enumerate(hypotheses[: len(outputs)]):
            output = outputs[sample]
            piece = ""
            if not output.tokens:
                for id in hypothesis.tokens:
                    piece += output.add(NewToken(sample, id, 0.0))
            piece += output.end()
            if piece:
                added.append((sample, piece))
            if hypothesis.finished:
                self._finished[prompt][sample] = "stop"
            self.metrics.generated_tokens += len(hypothesis.tokens)
        return added

    def _prompt_logprobs(self, prompt: int) -> LogProbs:
        """Those of a prompt that is echoed. Nothing predicts its first token where no mark begins a text."""
        run, given = self.asked.run, self.asked.prompts[prompt]
        text = WrittenText(run.tokenizer, (), ())
        for id in given:
            text.add(NewToken(0, id, 0.0))
        scored = self._prompt_tokens[prompt][-len(given) :] if given else []
        unscored = len(given) - len(scored)
        content = logprobs_of(run.tokenizer, [*text.tokens[:unscored], *scored], text.offsets)
        for place in range(unscored):
            content["token_logprobs"][place] = content["top_logprobs"][place] = None
        return content

    def _choice(self, prompt: int, sample: int) -> Choice:
        asked, output = self.asked, self.outputs[prompt][sample]
        text, logprobs = output.text, None
        if asked.echo:
            text = asked.run.tokenizer.decode(asked.prompts[prompt]) + text
        if asked.logprobs is not None:
            logprobs = output.logprobs()
            if asked.echo:
                logprobs = both(self._prompt_logprobs(prompt), logprobs)
        return self._numbered(prompt, sample, text, logprobs, self._finished[prompt][sample])

    def _piece(
        self, prompt: int, sample: int, text: str, reason: str | None = None
    ) -> CompletionObject:
        output, logprobs = self.outputs[prompt][sample], None
        if self.asked.logprobs is not None:
            logprobs = output.new_logprobs()
        return self._object([self._numbered(prompt, sample, text, logprobs, reason)])

    def _numbered(
        self,
        prompt: int,
        sample: int,
        text: str,
        logprobs: LogProbs | None,
        reason: str | None,
    ) -> Choice:
        index = prompt * len(self.outputs[prompt]) + sample
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _object(self, choices: list[Choice]) -> CompletionObject:
        content: CompletionObject = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.asked.served.name,
            "choices": choices,
        }
        if self.asked.strategy.seed is not None:
            content["seed"] = self.asked.strategy.seed
        return content

    @property
    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.asked.prompts))
        written = sum(len(one.tokens) for some in self.outputs for one in some)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
