"""The law of continuous batching: a search finds the same alone, in a crowd, and wherever it joins."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from tests.laws.conftest import LANGUAGE_MODELS, made

from seqloom.decoding.continuous_batch import ContinuousBatch, RunningSearch
from seqloom.decoding.generate import GenerationOptions, Search, finish, generate, search
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid, temperature, top_k
from seqloom.decoding.long_context import generate_windows, search_windows
from seqloom.decoding.prompt_states import PromptStates
from seqloom.decoding.strategies import BeamSearch, Sampling, Strategy
from seqloom.protocols import State
from seqloom.testing.decodable import INPUTS
from seqloom.text.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from tests.laws.conftest import Subject

KINDS = (
    "4-gram",
    "lstm language model",
    "ensemble",
    "gpt, learned",
    "gpt, rotary",
    "prompted gpt",
    "lstm, attention",
    "gru, 2 layers, one vector",
    "transformer",
    "t5",
)
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """The models are kept for other tests, which train them: their weights must be ordinary tensors."""
    with torch.no_grad():
        yield


def options(strategy: Strategy) -> GenerationOptions:
    rules = [forbid([PAD, BOS])]
    if isinstance(strategy, Sampling):
        rules += [temperature(1.5), top_k(4)]
    return GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=rules)


class Asked(NamedTuple):
    """A search."""

    source: str
    """What its encoder reads."""
    prompt: list[int]
    limit: int
    options: GenerationOptions

    def search(self) -> Search:
        return search([self.prompt], [self.limit], self.options, CPU)


def requests() -> list[Asked]:
    """16 searches that differ in prompt, length, strategy, seed and number of outputs."""
    asked = []
    for number in range(16):
        strategies: list[Strategy] = [
            Sampling(seed=number, samples=1 + number % 3),
            BeamSearch(width=3, n_best=2),
            BeamSearch(),
            Sampling(seed=7),
        ]
        prompt = [BOS, *[3 + (number * k) % 4 for k in range(1, 1 + number % 6)]]
        chosen = options(strategies[number % 4])
        asked.append(Asked(INPUTS[number % 3], prompt, 2 + number % 9, chosen))
    return asked


def first_state(subject: Subject, text: str) -> Callable[[], State]:
    return lambda: subject.begin([text])


class Counted:
    """A model that counts the tokens which it reads."""

    def __init__(self, model: Any) -> None:
        self.model, self.tokens = model, 0

    def __call__(self, tokens: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        self.tokens += tokens.numel()
        logits, after = self.model(tokens, state)
        return logits, after


def summary(found: list[list[Hypothesis]] | None) -> list[tuple[list[int], bool, int, float]]:
    assert found is not None
    return [(h.tokens, h.finished, h.sample, round(h.score, 4)) for h in found[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_finds_the_same_alone_and_in_company(kind: str) -> None:
    """All at once; one more at each step; in any order, while some are cancelled."""
    subject, asked = made(kind), requests()
    expected = []
    for one in asked:
        state = subject.begin([one.source])
        found = generate(subject.model, state, [one.prompt], [one.limit], one.options)
        expected.append(summary(found))
    assert len({str(found) for found in expected}) > 8, "the searches should find different texts"
    for seed, chunk in ((0, 256), (1, 1), (2, 3), (3, 256)):
        chance, batch = random.Random(seed), ContinuousBatch(subject.model, chunk)
        order = chance.sample(range(16), 16) if seed else list(range(16))
        running: dict[int, RunningSearch] = {}
        while order or len(batch):
            for _ in range(chance.randint(0, 2) if seed else 16):
                if order:
                    new = asked[number := order.pop()]
                    running[number] = batch.add(new.search(), first_state(subject, new.source))
            if seed == 3 and running and chance.random() < 0.2:
                batch.remove(running[chance.choice(list(running))])
            batch.step()
        for number, each in running.items():
            if each.ended:
                assert each.error is None
                assert summary(each.hypotheses) == expected[number], (seed, number)
        assert seed == 3 or all(each.ended for each in running.values())


def test_a_text_longer_than_the_context_goes_on_beside_others() -> None:
    """It reads its next window while the others decode."""
    subject = made("gpt, learned")
    sampling = options(Sampling(seed=3, samples=2))

    def new() -> Search:
        return search_windows([[BOS, 3, 4]], 70, sampling, 12, CPU)

    steps = generate_windows(subject.model, [[BOS, 3, 4]], 70, sampling, 12)
    (expected,) = finish(steps)
    batch = ContinuousBatch(subject.model)
    several = []
    for _ in range(3):
        several.append(batch.add(new(), lambda: None))
        batch.step()
    while len(batch):
        batch.step()
    for running in several:
        assert running.hypotheses is not None
        assert [h.tokens for h in running.hypotheses[0]] == [h.tokens for h in expected]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind in LANGUAGE_MODELS and "prompted" not in kind]
)
def test_a_prompt_that_goes_on_from_an_earlier_one_is_read_from_there(kind: str) -> None:
    """And finds the same, also while the earlier one still decodes."""
    subject, counted = made(kind), Counted(made(kind).model)
    batch = ContinuousBatch(counted)
    sampling = options(Sampling(seed=5, samples=2))
    prompt = [BOS, *[3 + number % 4 for number in range(20)]]
    for length, read in ((17, 17), (21, 4), (21, 4), (15, 15), (20, 3)):
        counted.tokens = 0
        running = batch.add(search([prompt[:length]], [4], sampling, CPU), lambda: None)
        batch.step()
        # the rows that decode read one token each
        decoded = 2 * sum(one.step is not None for one in batch._searches)
        assert 0 <= counted.tokens - read <= 2 * decoded
        while not running.ended:
            batch.step()
        expected = generate(subject.model, None, [prompt[:length]], [4], sampling)
        assert summary(running.hypotheses) == summary(expected)


def test_states_of_prompts_stay_within_their_bytes() -> None:
    known = PromptStates(most_bytes=8 * 100)
    for number in range(10):
        known.keep([number] * 20, torch.zeros(1, 30, dtype=torch.float64))
    found = [known.longest([number] * 21)[0] for number in range(10)]
    assert found == [0] * 7 + [20] * 3, "the oldest ones made room"
    known.keep([50] * 20, torch.zeros(1, 101, dtype=torch.float64))
    assert known.longest([50] * 21) == (0, None), "one that is too large is not kept"


def test_a_search_that_fails_fails_alone() -> None:
    subject = made("lstm language model")
    asked = requests()[0]

    def broken(_: object, log_probs: torch.Tensor) -> torch.Tensor:
        if log_probs.shape[0] == 2:
            raise ValueError("no such rule")
        return log_probs

    bad = GenerationOptions(strategy=Sampling(samples=2), eos=EOS, pad=PAD, processors=[broken])
    batch = ContinuousBatch(subject.model)
    good = batch.add(asked.search(), lambda: None)
    failing = batch.add(search([[BOS]], [5], bad, CPU), lambda: None)
    while len(batch):
        batch.step()
    assert isinstance(failing.error, ValueError)
    expected = generate(subject.model, None, [asked.prompt], [asked.limit], asked.options)
    assert good.hypotheses == expected


def test_a_long_prompt_holds_the_others_up_for_a_chunk_only() -> None:
    subject = made("gpt, rotary")
    batch = ContinuousBatch(subject.model, chunk=8)
    counted: list[int] = []
    greedy = GenerationOptions(strategy=BeamSearch(), eos=None, pad=PAD, processors=[forbid([PAD])])
    batch.add(
        search([[BOS]], [30], greedy, CPU, lambda step: counted.append(len(step.extended.tokens))),
        lambda: None,
    )
    batch.step()
    long = batch.add(search([[BOS] + [3] * 79], [1], greedy, CPU), lambda: None)
    before = len(counted)
    steps = 0
    while not long.ended:
        batch.step()
        steps += 1
    assert steps == 10
    assert len(counted) - before >= 9, "the short one goes on while the long one is read"
