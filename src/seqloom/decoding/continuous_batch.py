"""Many searches at once on one model: their rows share each call, and join and leave at any step.

A search (`generate.search`) knows nothing of the others: rules, seed, beam and stop strings are its own. What
it asks of the model is put together with what the others ask:

    one step = prompts are read, up to `chunk` tokens of them, and then every live row reads its next token

So a long prompt holds up the others for `chunk` tokens at most, and one that goes on from a prompt that was
read before is read from there (`prompt_states.py`). Random numbers are a function of seed, sample
and step (`strategies.py`), so a text does not depend on who else is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

import torch

from seqloom.decoding.decoder import Decoder, Prefill, Step
from seqloom.decoding.generate import Search
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.prompt_states import PromptStates
from seqloom.protocols import Decodable, NextLogProbs, State

CHUNK = 256
"""Tokens of prompts that are read in one step."""


@final
@dataclass(eq=False)
class RunningSearch:
    """One of the searches of a batch."""

    search: Search
    first_state: Callable[[], State]
    """Makes the state before its prompts, with a row for each: that of an encoder, or None."""
    hypotheses: list[list[Hypothesis]] | None = None
    """What it found, once it has ended."""
    error: Exception | None = None
    """What it failed with."""
    prefill: Prefill | None = None
    """What it is about to read, where it is not decoding;"""
    already_read: int = 0
    """so many tokens of that have been read,"""
    state: State = None
    """and this is the state after them."""
    reads_alone: bool = False
    """Whether that state is of its one prompt alone, so that another prompt may go on from it."""
    step: Step | None = None
    """What its live rows read next."""
    rows: range = field(default_factory=lambda: range(0))
    """Its rows among those of the decoder."""

    @property
    def ended(self) -> bool:
        return self.hypotheses is not None or self.error is not None


@contextmanager
def failing_alone(running: RunningSearch) -> Iterator[None]:
    """What goes wrong in this block is the failure of this search."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        running.error = error
        running.prefill, running.state, running.step = None, None, None


@final
class ContinuousBatch:
    """The searches that run on a model."""

    def __init__(self, model: Decodable, chunk: int = CHUNK) -> None:
        self._decoder = Decoder(model)
        self._chunk = chunk
        self._searches: list[RunningSearch] = []
        self._known = PromptStates()

    def __len__(self) -> int:
        return len(self._searches)

    def add(self, search: Search, first_state: Callable[[], State]) -> RunningSearch:
        """The search takes part from the next step on."""
        running = RunningSearch(search, first_state)
        self._searches.append(running)
        self._send(running, None)
        return running

    def remove(self, running: RunningSearch) -> None:
        """A search that nobody waits for any more. Its rows are gone before the next step."""
        if running in self._searches:
            self._searches.remove(running)
            running.search.close()

    def step(self) -> list[RunningSearch]:
        """One step of all searches; those that ended or failed, which are no longer part of the batch."""
        self._read_prompts()
        decoding = [search for search in self._searches if search.step is not None]
        if decoding:
            self._decode(decoding)
        else:
            self._decoder.drop()
        ended = [search for search in self._searches if search.ended]
        self._searches = [search for search in self._searches if not search.ended]
        return ended

    def _read_prompts(self) -> None:
        """Those of the first searches first, as far as `chunk` goes."""
        left = self._chunk
        for running in self._searches:
            if left <= 0:
                return
            if running.prefill is not None:
                with failing_alone(running):
                    left -= self._read_prompt(running, running.prefill, left)

    def _read_prompt(self, running: RunningSearch, call: Prefill, most: int) -> int:
        """Reads on in the prompt of a search; how many tokens that were."""
        rows = len(call.prompts)
        start = running.already_read
        if not start:
            running.state = running.first_state()
            running.reads_alone = running.state is None and rows == 1
            if running.reads_alone:
                start, running.state = self._known.longest(call.prompts[0].tolist())
                running.already_read = start
        columns = call.prompts[:, start : start + max(1, most // rows)]
        following, running.state = self._decoder.read(columns, running.state, call.wanted)
        running.already_read += columns.shape[1]
        if running.already_read == call.prompts.shape[1]:
            if running.reads_alone:
                self._known.keep(call.prompts[0].tolist(), running.state)
            first = self._decoder.rows
            following = self._decoder.join(following, running.state, call.rows_per_input)
            running.rows = range(first, first + len(following.log_probs))
            running.prefill, running.state = None, None
            self._send(running, following)
        return columns.numel()

    def _decode(self, decoding: list[RunningSearch]) -> None:
        """One token more for each live row of these searches; rows of others leave."""
        tokens, parents, wanted = [], [], set()
        for running in decoding:
            assert running.step is not None
            tokens.append(running.step.tokens)
            wanted.add(running.step.wanted)
            own = running.step.parents
            if own is None:
                own = torch.arange(len(running.rows), device=running.step.tokens.device)
            parents.append(own + running.rows.start)
        together = wanted.pop() if len(wanted) == 1 else None
        try:
            following = self._decoder.step(Step(torch.cat(tokens), torch.cat(parents), together))
        # each search is told, and later ones begin with no rows
        except Exception as error:  # noqa: BLE001
            self._decoder.drop()
            for running in decoding:
                running.error, running.step = error, None
            return
        first = 0
        for running, rows in zip(decoding, tokens, strict=True):
            running.rows = range(first, first + len(rows))
            first += len(rows)
            self._send(running, following.select(slice(running.rows.start, running.rows.stop)))

    def _send(self, running: RunningSearch, following: NextLogProbs | None) -> None:
        """Gives a search what it asked for, and takes what it asks for next."""
        running.step = None
        with failing_alone(running):
            try:
                call = next(running.search) if following is None else running.search.send(following)
            except StopIteration as end:
                running.hypotheses = end.value
                return
            if isinstance(call, Prefill):
                running.prefill, running.already_read = call, 0
            else:
                running.step = call
