"""Log-probabilities of answers: the whole text is the sum of its parts, wherever tokens are cut."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from seqloom.evaluation.perplexity import score_texts
from seqloom.protocols import read_source, target_log_probs
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.tasks.prompting import answers
from seqloom.tasks.prompting.answers import LanguageModelAnswers, TextPairAnswers

RUNS = Path(__file__).parent.parent.parent / "fixtures" / "runs"
LANGUAGE_MODELS = (
    *("text-gpt", "text-gpt-bpe", "text-gpt-rotary", "text-mixture", "text-ngram"),
    *("text-recurrent-lm", "text-recurrent-lm-adaptive"),
)
TEXT_PAIRS = ("translation-t5", "translation-transformer", "translation-seq2seq")


@pytest.fixture(scope="module", params=LANGUAGE_MODELS)
def language_model(request: pytest.FixtureRequest) -> LoadedRun:
    return load_run(RUNS / str(request.param), "cpu")


def log_prob(run: LoadedRun, text: str) -> float:
    """log P of a text that may go on."""
    (ids,) = run.tokenizer.encode([text])
    return score_texts(run.model, [ids], run.tokenizer.special_ids)[0].prefix


PROMPTS = ("the red dog", "a dog", "", "the ")
ANSWERS = (" runs", " sees the cat", "s", "gy", " r")


def test_a_text_cut_as_a_whole_is_the_sum_of_prompt_and_answer(language_model: LoadedRun) -> None:
    pairs = list(product(PROMPTS, ANSWERS))
    scores = LanguageModelAnswers(language_model.model, language_model.tokenizer).score(pairs)
    assert sum(not score.cut for score in scores) > 10
    for (prompt, answer), score in zip(pairs, scores, strict=True):
        if score.cut:
            continue
        # a blank at the end of a prompt belongs to its answer
        expected = log_prob(language_model, prompt + answer) - log_prob(
            language_model, prompt.rstrip()
        )
        assert score.value == pytest.approx(expected, abs=1e-4), (prompt, answer)
        assert score.tokens >= 1


def test_a_prompt_may_begin_with_no_mark() -> None:
    run = load_run(RUNS / "text-gpt", "cpu")
    (score,) = LanguageModelAnswers(run.model, run.tokenizer, ()).score([("the red", " dog sees")])
    (ids,) = run.tokenizer.encode(["the red dog sees"])
    special_ids = run.tokenizer.special_ids._replace(bos=(), eos=None)
    (expected,) = score_texts(run.model, [ids], special_ids)
    # the first token is only read
    assert score.value == pytest.approx(float(expected.log_probs[1:].sum()), abs=1e-5)


def test_nothing_is_lost_where_a_token_lies_across_the_join() -> None:
    run = load_run(RUNS / "text-gpt-bpe", "cpu")
    prompt, answer = _across_the_join(run)
    (score,) = LanguageModelAnswers(run.model, run.tokenizer).score([(prompt, answer)])
    assert score.value == pytest.approx(
        log_prob(run, prompt + answer) - log_prob(run, prompt), abs=1e-4
    )


def _across_the_join(run: LoadedRun) -> tuple[str, str]:
    """A prompt that ends inside a token of the whole text."""
    for token in sorted(run.tokenizer.token_bytes, key=len, reverse=True):
        text = token.decode("utf-8", "replace").strip()
        for end in range(1, len(text)):
            prompt, whole = run.tokenizer.encode(["the " + text[:end], "the " + text])
            if whole[: len(prompt)] != prompt:
                return "the " + text[:end], text[end:]
    raise AssertionError("the tokenizer has no token of two characters")


def test_answers_that_share_a_prompt_have_the_scores_that_they_have_alone(
    language_model: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = LanguageModelAnswers(language_model.model, language_model.tokenizer)
    pairs = list(product(PROMPTS[:2], ANSWERS))
    together = scorer.score(pairs)
    alone = [scorer.score([pair])[0] for pair in pairs]
    monkeypatch.setattr(answers, "BATCH_TOKENS", 5)
    in_small_batches = scorer.score(pairs, greedy=True)
    for one, other, small in zip(together, alone, in_small_batches, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-4)
        assert one.value == pytest.approx(small.value, abs=1e-4)


def test_a_prompt_is_read_once_for_all_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(RUNS / "text-gpt", "cpu")
    scorer = LanguageModelAnswers(run.model, run.tokenizer)
    read: list[int] = []
    states = scorer._states

    def counted(prompts: list[tuple[int, ...]]) -> object:
        read.append(len(prompts))
        return states(prompts)

    monkeypatch.setattr(scorer, "_states", counted)
    scorer.score(list(product(PROMPTS[:2], ANSWERS[:2])))
    assert sum(read) == 2


def test_what_prompts_have_in_common_is_read_once(
    language_model: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = LanguageModelAnswers(language_model.model, language_model.tokenizer)
    read: list[list[int]] = []
    plain = scorer._read

    def counted(texts: list[tuple[int, ...]], state: object) -> object:
        read.append([len(text) for text in texts])
        return plain(texts, state)

    monkeypatch.setattr(scorer, "_read", counted)
    pairs = [("a dog runs to it", " dog"), ("a dog runs to us", " dog"), ("a dog", " cat")]
    scorer.score(pairs)
    lengths = [len(ids) for ids in language_model.tokenizer.encode([one for one, _ in pairs])]
    assert sum(map(sum, read)) < sum(lengths)


def test_the_answer_of_greedy_decoding_is_greedy() -> None:
    run = load_run(RUNS / "text-gpt", "cpu")
    scorer = LanguageModelAnswers(run.model, run.tokenizer)
    (ids,) = run.tokenizer.encode(["the red"])
    logits, _ = run.model(torch.tensor([[*run.tokenizer.special_ids.bos, *ids]]), None)
    best = run.tokenizer.decode([*ids, int(logits[0, -1].argmax())])[len("the red") :]
    greedy = [
        one.greedy for one in scorer.score([("the red", best), ("the red", " zz")], greedy=True)
    ]
    assert greedy == [True, False]


def test_a_prompt_that_does_not_fit_is_cut_at_the_left() -> None:
    run = load_run(RUNS / "text-gpt", "cpu")
    scorer = LanguageModelAnswers(run.model, run.tokenizer)
    assert scorer.context is not None
    long = "the red dog " * scorer.context
    pairs = [(long + "sees", " it"), ("more " + long + "sees", " it"), ("sees", " it")]
    first, second, short = scorer.score(pairs)
    assert (first.cut, second.cut, short.cut) == (True, True, False)
    assert first.value == pytest.approx(second.value, abs=1e-5)


def test_an_answer_longer_than_the_context_is_scored_in_windows() -> None:
    run = load_run(RUNS / "text-gpt", "cpu")
    scorer = LanguageModelAnswers(run.model, run.tokenizer)
    assert scorer.context is not None
    answer = " dog" * (scorer.context + 9)
    (score,) = scorer.score([("the red", answer)])
    assert score.cut
    assert score.tokens == scorer.context + 9
    (ids,) = run.tokenizer.encode(["the red" + answer])
    special_ids = run.tokenizer.special_ids._replace(eos=None)
    (whole,) = score_texts(run.model, [ids], special_ids, stride=scorer.context // 2)
    assert score.value == pytest.approx(float(whole.log_probs[2:].sum()), abs=1e-4)


@pytest.mark.parametrize("name", TEXT_PAIRS)
def test_the_prompt_is_the_source_of_a_model_of_text_pairs(name: str) -> None:
    run = load_run(RUNS / name, "cpu")
    special_ids = run.tokenizer.special_ids
    pairs = list(product(("a dog runs", "the cat"), (" Hund", " die Katze", " a")))
    scores = TextPairAnswers(run.model, run.tokenizer).score(pairs)
    for (prompt, answer), score in zip(pairs, scores, strict=True):
        source, target = run.tokenizer.encode([prompt, answer.strip()])
        ids = [*special_ids.bos, *target, special_ids.eos]
        with torch.inference_mode():
            encoded = torch.tensor([[*special_ids.prefix, *source, *special_ids.suffix]])
            found, _ = target_log_probs(
                run.model,
                torch.tensor([ids[:-1]]),
                torch.tensor([ids[1:]]),
                read_source(run.model, encoded),
            )
        assert score.value == pytest.approx(float(found.sum()), abs=1e-4)
        assert score.tokens == len(target) + 1
