"""The laws of every model that predicts a next token: `logits, state = model(tokens, state)`.

Step by step, in pieces, alone, in a batch, padded anywhere, reordered or decoded: the same answers and the
same gradients.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import BeamSearch
from seqloom.layers.outputs.adaptive_softmax import AdaptiveOutput
from seqloom.protocols import (
    EncoderDecoder,
    NeuralDecodable,
    Shared,
    SpecialIds,
    State,
    fork,
    join_rows,
    next_logits,
    reorder_in_place,
    select_rows,
    target_log_probs,
    tensors_of,
)
from seqloom.shapes import IGNORE
from seqloom.testing.tensors import LAYOUTS, assert_close, draw_parameters, pad_rows, run_laws
from seqloom.text.special_tokens import SPECIAL_IDS

INPUTS = ("cab$", "b$", "ddacb$")
"""What an encoder reads, one text a row: a to d are four words of the vocabulary, ^ is <s>, $ is </s>."""
TOKENS = ("^ac", "^bbdac", "^")
"""What is read first."""
MORE = ("ad", "cc", "ba")
"""How each row goes on."""
PACKED = ("^acbb^^ca", "^bddacbaad", "^d^d^bdda")
"""Rows of several documents."""


@final
@dataclass(frozen=True, eq=False)
class DecodableLaws:
    """A model in float64 and evaluation mode, and the laws it must keep."""

    model: Any
    """An `nn.Module` that is a `Decodable`."""
    start: Callable[[Tensor], State]
    """inputs `(rows, source)`, padded anywhere -> the state before the first token. A model without an
    encoder looks at the number of rows only."""
    tolerance: float = 1e-10
    """Of log-probabilities: counts are kept in float32."""
    special_ids: SpecialIds = SPECIAL_IDS
    words: tuple[int, ...] = (3, 4, 5, 6)

    def ids(self, *texts: str) -> list[list[int]]:
        special = self.special_ids
        spelled = dict(zip("abcd", ([word] for word in self.words), strict=True))
        spelled |= {"^": list(special.bos), "$": [] if special.eos is None else [special.eos]}
        return [[token for letter in text for token in spelled[letter]] for text in texts]

    def batch(self, texts: Sequence[str], layout: str = "right") -> Tensor:
        return pad_rows(self.ids(*texts), layout, self.special_ids.pad)

    def begin(self, inputs: Sequence[str] = INPUTS, layout: str = "right") -> State:
        return self.start(self.batch(inputs, layout))

    @property
    def more(self) -> Tensor:
        return self.batch(MORE)

    @cached_property
    def alone(self) -> list[tuple[Tensor, Tensor]]:
        """What each row's TOKENS and, after them, its MORE give where there is no other row and no padding:
        `(steps, vocabulary)` each."""
        found = []
        for text, tokens, more in zip(INPUTS, TOKENS, MORE, strict=True):
            logits, state = self.model(self.batch([tokens]), self.begin([text]))
            found.append((logits[0], self.model(self.batch([more]), state)[0][0]))
        return found

    @property
    def separate_documents(self) -> bool:
        """Whether it is a language model for which <s> within a row begins a document."""
        joined = getattr(getattr(self.model, "config", None), "documents", "separate") == "joined"
        return (
            bool(self.special_ids.bos) and not joined and not isinstance(self.model, EncoderDecoder)
        )

    def check(self) -> None:
        laws: list[Callable[[], None]] = [
            self.step_by_step_is_all_at_once,
            self.in_pieces_is_all_at_once,
            self.logits_do_not_depend_on_what_comes_later,
            self.the_next_logits_are_the_last_of_the_call,
            self.log_probs_of_targets_are_those_of_the_call,
            self.a_row_in_a_padded_batch_is_that_row_alone,
            self.selecting_rows_then_stepping_is_stepping_then_selecting,
            self.reordering_in_place_is_selecting_rows,
            self.a_fork_continues_by_itself,
            self.rows_that_join_continue_as_alone,
            self.rows_decode_together_as_alone,
        ]
        is_neural = isinstance(self.model, NeuralDecodable)
        if is_neural:
            laws += [
                self.the_two_halves_are_the_call,
                self.gradients_of_a_padded_batch_are_the_sum_over_rows_alone,
            ]
        if self.separate_documents:
            laws += [
                self.packed_documents_are_separate_documents,
                self.a_document_begins_in_a_carried_state,
            ]
        if self.separate_documents and is_neural:
            laws.append(self.gradients_of_packed_documents_are_the_sum_over_documents)
        with torch.no_grad():
            run_laws(type(self.model).__name__, laws)

    # The call

    def _in_pieces(self, tokens: Tensor, state: State, cuts: Sequence[int]) -> tuple[Tensor, State]:
        """The same call, once for each piece between the cuts."""
        found = []
        for piece in tokens.tensor_split(list(cuts), dim=1):
            logits, state = self.model(piece, state)
            found.append(logits)
        return torch.cat(found, dim=1), state

    def step_by_step_is_all_at_once(self) -> None:
        tokens = self.batch(("^bbdac", "^addab", "^c$aad"))
        whole, state = self.model(tokens, self.begin())
        steps, stepped = self._in_pieces(tokens, self.begin(), range(1, tokens.shape[1]))
        assert_close(steps, whole)
        assert_close(self.model(self.more, stepped)[0], self.model(self.more, state)[0])

    def in_pieces_is_all_at_once(self) -> None:
        tokens = self.batch(TOKENS, "around")  # so some pieces are padding only
        whole, state = self.model(tokens, self.begin())
        after, _ = self.model(self.more, state)
        real, chance = tokens != self.special_ids.pad, random.Random(0)
        for _ in range(3):
            cuts = sorted(chance.sample(range(1, tokens.shape[1]), k=chance.randint(1, 4)))
            pieces, state = self._in_pieces(tokens, self.begin(), cuts)
            assert_close(pieces[real], whole[real])
            assert_close(self.model(self.more, state)[0], after)

    def logits_do_not_depend_on_what_comes_later(self) -> None:
        text = "^bbdac"
        other_words = str.maketrans("abcd", "cdab")
        first = len(self.ids("^")[0])
        whole, _ = self.model(self.batch([text]), self.begin(INPUTS[:1]))
        for step in range(1, len(text)):
            changed = text[:step] + text[step:].translate(other_words)
            logits, _ = self.model(self.batch([changed]), self.begin(INPUTS[:1]))
            place = first + step - 1
            assert_close(logits[:, :place], whole[:, :place])
            assert not torch.allclose(logits[:, place], whole[:, place], rtol=1e-3), (
                "a token is not read"
            )

    def the_two_halves_are_the_call(self) -> None:
        logits, _ = self.model(self.more, self.begin())
        hidden, _ = self.model.read(self.more, self.begin())
        assert_close(self.model.output.logits(hidden), logits)

    def the_next_logits_are_the_last_of_the_call(self) -> None:
        tokens = self.batch(TOKENS, "left")
        logits, _ = self.model(tokens, self.begin())
        assert_close(next_logits(self.model, tokens, self.begin())[0], logits[:, -1])

    def log_probs_of_targets_are_those_of_the_call(self) -> None:
        tokens = self.batch(TOKENS)
        targets = tokens.roll(-1, dims=1)
        targets[~torch.isin(targets, torch.tensor(self.words))] = IGNORE  # what is never predicted
        targets[tokens == self.special_ids.pad] = IGNORE
        logits, state = self.model(tokens, self.begin())
        found, after = target_log_probs(self.model, tokens, targets, self.begin())
        expected = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        assert_close(found, expected.where(targets != IGNORE, 0), self.tolerance, self.tolerance)
        assert_close(self.model(self.more, after)[0], self.model(self.more, state)[0])

    # Padding

    def a_row_in_a_padded_batch_is_that_row_alone(self) -> None:
        for layout, source_layout in itertools.product(LAYOUTS, repeat=2):
            tokens = self.batch(TOKENS, layout)
            logits, state = self.model(tokens, self.begin(layout=source_layout))
            after, _ = self.model(self.more, state)
            for row, (expected, expected_after) in enumerate(self.alone):
                assert_close(logits[row][tokens[row] != self.special_ids.pad], expected)
                assert_close(after[row], expected_after)

    def gradients_of_a_padded_batch_are_the_sum_over_rows_alone(self) -> None:
        rows = [
            self._gradients(self.batch([text]), self.batch([tokens]))
            for text, tokens in zip(INPUTS, TOKENS, strict=True)
        ]
        total = [sum(parts[1:], parts[0]) for parts in zip(*rows, strict=True)]
        assert any(gradient.any() for gradient in total), "no parameter has a gradient"
        for layout in LAYOUTS:
            found = self._gradients(self.batch(INPUTS, layout), self.batch(TOKENS, layout))
            assert_close(found, tuple(total))

    @torch.enable_grad()
    def _gradients(self, inputs: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """Of the summed loss of predicting, at each true step, the token itself."""
        hidden, _ = self.model.read(tokens, self.start(inputs))
        # the adaptive softmax refuses label smoothing
        smoothing = 0.0 if isinstance(self.model.output, AdaptiveOutput) else 0.1
        real = tokens != self.special_ids.pad
        loss = self.model.output.loss(hidden, tokens.where(real, IGNORE), smoothing)
        assert loss.count == real.sum(), "the count of a loss must be the number of trained tokens"
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.autograd.grad(loss.total, trained, materialize_grads=True)

    # The state

    def selecting_rows_then_stepping_is_stepping_then_selecting(self) -> None:
        _, state = self.model(self.batch(TOKENS), self.begin())
        _, state = self.model(self.more, state)
        twice = self.model(self.more, state)[0]
        for rows in ([2, 0, 1], [1], [2, 0, 0, 1, 2, 2], [0, 1, 2]):
            chosen = torch.tensor(rows)
            _, state = self.model(self.batch(TOKENS), self.begin())
            few = select_rows(state, chosen)
            assert all(part.shape[0] == len(rows) for part in tensors_of(few)), "a row comes first"
            for part, same in zip(shared_parts(few), shared_parts(state), strict=True):
                assert part is same, "what is shared belongs to no row"
            logits, few = self.model(self.more[chosen], few)
            for row, source in enumerate(rows):
                assert_close(logits[row], self.alone[source][1])
            assert_close(self.model(self.more[chosen], few)[0], twice[chosen])

    def reordering_in_place_is_selecting_rows(self) -> None:
        """Rows that were one text up to some place, and rows that never were, reordered again and again while
        the state grows."""
        texts, inputs = ("^acb", "^acd", "^adb", "^bbb"), [INPUTS[at] for at in (0, 0, 0, 2)]
        chance = random.Random(0)
        with torch.inference_mode():
            _, reordered = self.model(self.batch(texts), self.begin(inputs))
            _, selected = self.model(self.batch(texts), self.begin(inputs))
            for rows in ([0, 0, 2, 1, 3], [1, 0, 1, 3], [0, 1, 2, 2], [3, 2, 0], [0, 0, 2], [0, 1]):
                order, tokens = (
                    torch.tensor(rows),
                    torch.tensor([[chance.choice(self.words)] for _ in rows]),
                )
                logits, reordered = self.model(tokens, reorder_in_place(reordered, order))
                expected, selected = self.model(tokens, select_rows(selected, order))
                assert_close(logits, expected)

    def a_fork_continues_by_itself(self) -> None:
        _, state = self.model(self.batch(TOKENS, "left"), self.begin())
        twin = fork(state)
        for mine, its in zip(tensors_of(state), tensors_of(twin), strict=True):
            assert mine.data_ptr() != its.data_ptr()
            assert torch.equal(mine, its)
        self.model(self.batch(("dd", "aa", "cc")), state)
        logits, _ = self.model(self.more, twin)
        for row, (_, expected) in enumerate(self.alone):
            assert_close(logits[row], expected)

    def rows_that_join_continue_as_alone(self) -> None:
        """Rows of inputs, prompts and lengths of their own, one after the other, while others leave."""
        with torch.inference_mode():
            together: State = None
            alone: list[State] = []
            for number, (text, tokens) in enumerate(zip(INPUTS * 2, TOKENS * 2, strict=True)):
                _, state = self.model(self.batch([tokens]), self.begin([text]))
                alone.append(self.model(self.batch([tokens]), self.begin([text]))[1])
                together = join_rows([together, state]) if number else state
                if number in (2, 4):
                    leaving = number // 2 - 1
                    left = [row for row in range(len(alone)) if row != leaving]
                    together = reorder_in_place(together, torch.tensor(left))
                    alone.pop(leaving)
                words = [self.words[(number + row) % 4] for row in range(len(alone))]
                logits, together = self.model(torch.tensor([[word] for word in words]), together)
                for row, word in enumerate(words):
                    expected, alone[row] = self.model(torch.tensor([[word]]), alone[row])
                    assert_close(logits[row], expected[0])

    # Documents

    def _packed(self) -> tuple[Tensor, list[Tensor]]:
        """Rows of several documents, padded on both sides; and each document by itself."""
        rows, pad = self.ids(*PACKED), self.special_ids.pad
        longest = max(map(len, rows)) + 2
        padded = []
        for number, row in enumerate(rows):
            before = number % 2
            padded.append([pad] * before + row + [pad] * (longest - len(row) - before))
        documents = [f"^{text}" for row in PACKED for text in row.split("^")[1:]]
        return torch.tensor(padded), [self.batch([document]) for document in documents]

    def packed_documents_are_separate_documents(self) -> None:
        packed, documents = self._packed()
        logits, state = self.model(packed, None)
        expected = [self.model(document, None)[0][0] for document in documents]
        assert_close(logits[packed != self.special_ids.pad], torch.cat(expected))
        # each row goes on with its last document
        after, _ = self.model(self.batch(("ad",) * 3), state)
        for row, text in enumerate(PACKED):
            whole, _ = self.model(self.batch([f"^{text.split('^')[-1]}ad"]), None)
            assert_close(after[row], whole[0, -2:])

    def gradients_of_packed_documents_are_the_sum_over_documents(self) -> None:
        packed, documents = self._packed()
        rows = [self._gradients(document, document) for document in documents]
        expected = tuple(sum(parts[1:], parts[0]) for parts in zip(*rows, strict=True))
        assert_close(self._gradients(packed, packed), expected, 1e-9, 1e-11)

    def a_document_begins_in_a_carried_state(self) -> None:
        _, state = self.model(self.batch(("^ac", "^dd")), None)
        logits, _ = self.model(self.batch(("^ba", "b^c")), state)
        assert_close(logits[0], self.model(self.batch(["^ba"]), None)[0][0])
        assert_close(logits[1, 1:], self.model(self.batch(["^c"]), None)[0][0])
        carried, _ = self.model(self.batch(["^ddb"]), None)
        assert_close(logits[1, 0], carried[0, -1])

    # Decoding

    def rows_decode_together_as_alone(self, width: int = 3) -> None:
        """And nothing is written that is forbidden."""
        limits = (5, 8, 2)
        together = self._decoded(INPUTS, TOKENS, limits, width)
        for row, (text, tokens, limit) in enumerate(zip(INPUTS, TOKENS, limits, strict=True)):
            (expected,) = self._decoded([text], [tokens], [limit], width)
            found = together[row]
            assert [(h.tokens, h.finished) for h in found] == [
                (h.tokens, h.finished) for h in expected
            ]
            scores, alone = (
                torch.tensor([h.score for h in hypotheses]) for hypotheses in (found, expected)
            )
            assert_close(scores, alone, 1e-5, 1e-5)
            assert len(found) == width
            for h in found:
                assert h.finished or len(h.tokens) == limit
                assert len(h.tokens) + h.finished <= limit
                assert set(h.tokens) <= set(self.words)

    def _decoded(
        self, inputs: Sequence[str], prompts: Sequence[str], limits: Sequence[int], width: int
    ) -> list[list[Hypothesis]]:
        special = self.special_ids
        size = self.model(self.more, self.begin())[0].shape[-1]
        forbidden = sorted(set(range(size)) - {*self.words, special.eos})
        strategy = BeamSearch(width=width, n_best=width)
        options = GenerationOptions(
            strategy=strategy, eos=special.eos, pad=special.pad, processors=[forbid(forbidden)]
        )
        return generate(self.model, self.begin(inputs), self.ids(*prompts), limits, options)


def shared_parts(state: State) -> list[Shared[Any]]:
    """The `Shared` parts of a state."""
    match state:
        case Shared():
            return [state]
        case tuple():
            return list(itertools.chain.from_iterable(map(shared_parts, state)))
    return []


def check_decodable(
    model: nn.Module, vocabulary_size: int, special_ids: SpecialIds = SPECIAL_IDS
) -> None:
    """Checks a model that predicts the next token, with or without an encoder, in a copy with random weights
    in float64. The vocabulary must have four ids that are no special ones. Raises AssertionError with the
    law that is broken."""
    special = {
        special_ids.pad,
        special_ids.eos,
        special_ids.unk,
        special_ids.mask,
        *special_ids.bos,
    }
    special |= {
        *special_ids.prefix,
        *special_ids.separator,
        *special_ids.suffix,
        *special_ids.forbidden,
    }
    words = tuple(id for id in range(vocabulary_size) if id not in special)[:4]
    tested: Any = copy.deepcopy(model).double().eval()
    draw_parameters(tested)
    start = tested.encode if isinstance(tested, EncoderDecoder) else _no_state
    DecodableLaws(tested, start, special_ids=special_ids, words=words).check()


def _no_state(inputs: Tensor) -> State:
    return None
