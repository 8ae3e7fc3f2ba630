"""Marks: a checkpoint of others has its own. What is decoded and scored does not depend on how ids are
numbered, on what else is in a batch, nor on which id, if any, means that nothing is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seqloom.config import DecodeConfig
from seqloom.data.batching.pair_batches import pair_batch
from seqloom.errors import UsageError
from seqloom.evaluation.perplexity import CorpusLikelihood, score_texts
from seqloom.evaluation.teacher_forcing import teacher_forcing_score
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.protocols import SpecialIds
from seqloom.runs.decoding_options import generation_options
from seqloom.runs.run_folder import LoadedRun
from seqloom.shapes import IGNORE
from seqloom.tasks.language_modeling.complete import Completer
from seqloom.tasks.language_modeling.generate import TextGenerator
from seqloom.tasks.language_modeling.score import Scorer
from seqloom.tasks.translation.translate import batches_of_pairs, decode_texts
from seqloom.tasks.translation.translator import Translator
from seqloom.workflows.analysis.degeneration import (
    HumanText,
    continue_prompts,
    fitting_new_tokens,
    score_continuations,
)
from seqloom.workflows.analysis.exact import ExactSearcher

SPECIAL, LETTERS = 6, "abcdefghijklmnopqrstuvwxyz "
SIZE = SPECIAL + len(LETTERS)

OURS = SpecialIds(
    pad=0,
    bos=(1,),
    eos=2,
    unk=3,
    prefix=(),
    separator=(4,),
    suffix=(2,),
    mask=None,
    forbidden=(0, 1, 3, 4, 5),
)
MARKS = {
    "ours": OURS,
    "gpt2": OURS._replace(pad=-1, bos=(2,), suffix=(), unk=None, forbidden=(0, 1, 3, 4, 5)),
    "gpt1": OURS._replace(pad=-1, bos=(), eos=None, suffix=(), forbidden=(0, 1, 2, 3, 4, 5)),
    "t5": OURS._replace(pad=-1, bos=(0,), eos=1, suffix=(1,), forbidden=(0, 2, 3, 4, 5)),
    "bart": OURS._replace(pad=-1, bos=(2, 5), prefix=(5,), forbidden=(0, 1, 3, 4, 5)),
    "no begin": OURS._replace(pad=-1, bos=(), forbidden=(0, 1, 3, 4, 5)),
}
PROMPTS = ["a", "abc ab", "hgfedcba hgfe", "b b b b", "c"]


@dataclass(frozen=True)
class Letters:
    """A tokenizer of letters, whose ids are `number` of those above: of a permutation."""

    usual: SpecialIds
    number: Sequence[int] = tuple(range(SIZE))
    kind = "characters"
    text_separator = b""
    space_prefix = b""
    space_suffix = b""
    vocabulary_size = SIZE

    @property
    def special_ids(self) -> SpecialIds:
        def at(found: Any) -> Any:
            if isinstance(found, tuple):
                return tuple(map(at, found))
            return found if found is None or found < 0 else self.number[found]

        return SpecialIds(*map(at, self.usual))

    @property
    def token_bytes(self) -> list[bytes]:
        found = [b""] * SIZE
        for at, letter in enumerate(LETTERS, SPECIAL):
            found[self.number[at]] = letter.encode()
        return found

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.number[SPECIAL + LETTERS.index(letter)] for letter in text] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes[i] for i in ids).decode()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        assert all(0 <= i < SIZE for i in ids)
        return [self.token_bytes[i].decode() or f"<{self.number.index(i)}>" for i in ids]

    def stable_prefix(self, text: str) -> tuple[list[int], bytes]:
        return self.encode([text])[0], b""


def permutation(seed: int) -> list[int]:
    number: list[int] = torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed)).tolist()
    return number


def random_weights(model: nn.Module, seed: int) -> Any:
    """In float64, far from uniform."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.double().named_parameters():
            parameter.copy_(
                (1.0 if "embedding" in name or "positions" in name else 0.5)
                * torch.randn(parameter.shape, generator=source)
            )
    return model.eval()


def renumbered(model: Any, config: Any, number: Sequence[int]) -> Any:
    """The same model under other ids: each row of its embedding and of its output stands elsewhere."""
    other = type(model)(config).double().eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name in ("embedding.weight", "output.weight"):
            other.get_parameter(name)[torch.tensor(list(number))] = model.get_parameter(
                name
            ).clone()
    return other


def language_model(tokenizer: Letters) -> GPT:
    """The same for every numbering."""
    sizes: dict[str, Any] = {
        "vocabulary_size": SIZE,
        "context": 64,
        "width": 16,
        "layers": 2,
        "heads": 2,
    }
    config = GPTConfig(**sizes, documents="joined", tie_output=False)
    model = random_weights(GPT(config), 3)
    return renumbered(  # type: ignore[no-any-return]
        model, replace(config, pad_id=tokenizer.special_ids.pad, bos_id=SIZE), tokenizer.number
    )


def translation_model(tokenizer: Letters) -> Transformer:
    sizes: dict[str, Any] = {
        "vocabulary_size": SIZE,
        "width": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "heads": 2,
    }
    config = TransformerConfig(**sizes, positions="learned", context=30, tie_output=False)
    model = random_weights(Transformer(config), 5)
    return renumbered(model, replace(config, pad_id=tokenizer.special_ids.pad), tokenizer.number)  # type: ignore[no-any-return]


def bundle_of(tokenizer: Letters, task: str = "text-generation", **decode: Any) -> LoadedRun:
    return LoadedRun(
        folder=Path("runs/tales"),
        task=task,
        model_type="gpt",
        model=language_model(tokenizer)
        if task == "text-generation"
        else translation_model(tokenizer),
        tokenizer=tokenizer,  # type: ignore[arg-type]
        decode=DecodeConfig(**{"max_length": 9, "beam": 3, "n_best": 2} | decode),
        weights=Path("none"),
    )


RULED: dict[str, Any] = {
    "repetition_penalty": 1.4,
    "no_repeat_ngram": 2,
    "ban": ("ab",),
    "min_length": 2,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "beam": {},
    "greedy": {"beam": 1, "n_best": 1},
    "ruled": RULED,
    "no letter twice": {"no_repeat_ngram": 1, "begin": "z"},
    "groups": {"beam": 4, "groups": 2, "n_best": 3},
}
# a language model begins with one mark at most
WRITERS = [name for name in MARKS if name != "bart"]
TRANSLATORS = ["ours", "t5", "bart"]


Found = list[list[tuple[str, Any, bool]]]
"""For each text its outputs: text, score (which is equal where it is nearly so), whether it ended."""


def found_by(tokenizer: Letters, prompts: Sequence[str], **decode: Any) -> Found:
    outputs = TextGenerator(bundle_of(tokenizer, **decode)).generate(prompts)
    return [
        [(one.text, Near(one.log_probability), one.finished) for one in some] for some in outputs
    ]


def translated_by(tokenizer: Letters, sources: Sequence[str], **decode: Any) -> Found:
    bundle = bundle_of(tokenizer, "translation", **decode)
    outputs = decode_texts(bundle.model, bundle.tokenizer, sources, bundle.decode)
    return [[(one.text, Near(one.score or 0), one.finished) for one in some] for some in outputs]


class Near(float):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(self - other) < 1e-4

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", WRITERS)
def test_numbers_and_batches_change_no_text(name: str, settings: str) -> None:
    """Not those of a draw: which id a random number falls on is a matter of their order."""
    usual = Letters(MARKS[name])
    found = found_by(usual, PROMPTS, **SETTINGS[settings])
    assert len({text for some in found for text, _, _ in some}) > 1
    assert [found_by(usual, [prompt], **SETTINGS[settings])[0] for prompt in PROMPTS] == found
    for seed in range(2):
        assert (
            found_by(Letters(MARKS[name], permutation(seed)), PROMPTS, **SETTINGS[settings])
            == found
        )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", TRANSLATORS)
def test_numbers_and_batches_change_no_translation(name: str, settings: str) -> None:
    usual = Letters(MARKS[name])
    found = translated_by(usual, PROMPTS, **SETTINGS[settings])
    assert len({text for some in found for text, _, _ in some}) > 1
    assert [translated_by(usual, [source], **SETTINGS[settings])[0] for source in PROMPTS] == found
    for seed in range(2):
        assert (
            translated_by(Letters(MARKS[name], permutation(seed)), PROMPTS, **SETTINGS[settings])
            == found
        )


@pytest.mark.usefixtures("one_thread")
def test_samples_of_a_batch_are_those_of_each_alone() -> None:
    sampling = {"strategy": "sample", "n_best": 3, "seed": 5, **RULED}
    for name in WRITERS:
        tokenizer = Letters(MARKS[name])
        assert [found_by(tokenizer, [prompt], **sampling)[0] for prompt in PROMPTS] == found_by(
            tokenizer, PROMPTS, **sampling
        )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("settings", SETTINGS)
def test_no_pad_is_as_good_as_one(settings: str) -> None:
    """A spare id that means <pad>, and none: the same texts."""
    none = OURS._replace(pad=-1)
    assert found_by(Letters(none), PROMPTS, **SETTINGS[settings]) == found_by(
        Letters(OURS), PROMPTS, **SETTINGS[settings]
    )
    assert translated_by(Letters(none), PROMPTS, **SETTINGS[settings]) == translated_by(
        Letters(OURS), PROMPTS, **SETTINGS[settings]
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_scored_alike(name: str) -> None:
    """Σ log p of a search, that of the scorer given the prompt, and the step by step one of the table; the
    prompt's first token has none where nothing begins a text."""
    tokenizer = Letters(MARKS[name])
    bundle = bundle_of(tokenizer)
    scorer = Scorer.__new__(Scorer)
    scorer.run = bundle
    ended = MARKS[name].eos is not None
    for prompt, outputs in zip(PROMPTS, TextGenerator(bundle).generate(PROMPTS), strict=True):
        for one in outputs:
            (scored,) = scorer.score([one.text], prompt=prompt, tokens=True)
            assert one.log_probability == pytest.approx(
                scored.log_probability if one.finished else scored.log_probability_without_end,
                rel=1e-4,
            )
            assert scored.tokens == len(scored.table) == len(one.text) + ended
            assert [row.token for row in scored.table] == [
                *one.text,
                *(["<2>" if name != "t5" else "<1>"] if ended else []),
            ]
    whole, part = (
        next(iter(scorer.score(["abc"], prompt=prompt, tokens=True))) for prompt in ("", "a")
    )
    given = bool(MARKS[name].bos)
    assert whole.tokens == 2 + given + ended
    assert [row.token for row in whole.table][:2] == (["a", "b"] if given else ["b", "c"])
    (empty,) = scorer.score([""])
    assert empty.tokens == (given and ended)
    assert np.isnan(empty.perplexity) == (not empty.tokens)
    assert part.tokens == 3 + ended


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", WRITERS)
def test_scores_do_not_depend_on_numbers_windows_add_up(name: str) -> None:
    texts = ["abcdefgh", "", "a", "hhh a b", "gfedcba " * 3]
    found = []
    for number in (tuple(range(SIZE)), permutation(4)):
        tokenizer = Letters(MARKS[name], number)
        model = language_model(tokenizer)
        scores = score_texts(model, tokenizer.encode(texts), tokenizer.special_ids)
        alone = [
            score_texts(model, [ids], tokenizer.special_ids, budget=1)[0]
            for ids in tokenizer.encode(texts)
        ]
        corpus = CorpusLikelihood.empty(tokenizer.special_ids)
        for score, one, ids, text in zip(
            scores, alone, tokenizer.encode(texts), texts, strict=True
        ):
            np.testing.assert_allclose(score.log_probs, one.log_probs, atol=1e-9)
            corpus.add(score, ids, words=len(text.split()), size=len(text))
        found.append(
            [*(score.log_probs for score in scores), np.array(list(corpus.metrics().values()))]
        )
        lost = 0 if tokenizer.special_ids.bos else 1
        assert [len(score.log_probs) for score in scores] == [
            max(len(text) + scores[0].ended - lost, 0) for text in texts
        ]
        assert corpus.metrics()["tokens"] == sum(len(score.log_probs) for score in scores)
        assert corpus.metrics()["documents"] == len(texts)
    for usual, other in zip(*found, strict=True):
        np.testing.assert_allclose(usual, other, atol=1e-9)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translation_is_taught_as_it_is_decoded(name: str) -> None:
    """Marks that begin an output are fed and never trained, so the loss of an output is its search's Σ log
    p."""
    tokenizer = Letters(MARKS[name], permutation(1))
    bundle = bundle_of(tokenizer, "translation", length_penalty=0.0)
    with torch.no_grad():
        bundle.model.get_parameter("output.weight")[tokenizer.special_ids.eos] *= (
            3  # it is likely now and then
        )
    outputs = decode_texts(bundle.model, tokenizer, PROMPTS, bundle.decode)
    finished = [
        (source, one)
        for source, some in zip(PROMPTS, outputs, strict=True)
        for one in some
        if one.finished
    ]
    assert len(finished) > 3
    batches = batches_of_pairs(
        tokenizer, [(source, one.text) for source, one in finished], torch.device("cpu"), 40
    )
    taught = teacher_forcing_score(bundle.model, batches)
    assert taught.total == pytest.approx(-sum(one.score or 0 for _, one in finished), rel=1e-5)
    assert taught.count == sum(len(one.text) + 1 for _, one in finished)


@pytest.mark.usefixtures("one_thread")
def test_exact_search_finds_the_same_under_every_number() -> None:
    for name, task, text in (
        ("gpt2", "text-generation", "ab"),
        ("t5", "translation", "ab"),
        ("bart", "translation", "cab"),
    ):
        rows = []
        for number in (tuple(range(SIZE)), permutation(2)):
            searcher = ExactSearcher(
                bundle_of(Letters(MARKS[name], number), task, max_length=4), beams=[1]
            )
            (row,) = searcher.compare([text])
            rows.append((row.text, row.proven, Near(row.log_probability or 0.0)))
            assert row.proven
            assert all(
                beam is None or not beam.finished or (beam.shortfall or 0.0) >= 0
                for beam in row.beams.values()
            )
        assert rows[0] == rows[1]
    with pytest.raises(UsageError, match="nothing ends a text"):
        ExactSearcher(bundle_of(Letters(MARKS["gpt1"])))


@pytest.mark.usefixtures("one_thread")
def test_completions_do_not_depend_on_numbers() -> None:
    for name in WRITERS:
        both = []
        for number in (tuple(range(SIZE)), permutation(3)):
            tokenizer = Letters(MARKS[name], number)
            completer = Completer(language_model(tokenizer), tokenizer)  # type: ignore[arg-type]
            both.append(
                [
                    (one.text, Near(one.probability), one.ended)
                    for one in completer.complete("ab c", 4)
                ]
            )
        assert both[0] == both[1]
        assert sum(share for _, share, _ in both[0]) <= 1.0001
        if not MARKS[name].bos:
            with pytest.raises(UsageError, match="must not be empty"):
                completer.complete("")


def test_a_text_that_nothing_begins_needs_a_first_word() -> None:
    for name in ("gpt1", "no begin"):
        with pytest.raises(UsageError, match="the text to go on with must not be empty"):
            TextGenerator(bundle_of(Letters(MARKS[name]))).generate([""])
    assert TextGenerator(bundle_of(Letters(MARKS["gpt2"]))).generate([""])[0]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", WRITERS)
def test_human_and_decoded_texts_are_scored_alike(name: str) -> None:
    bundle = bundle_of(Letters(MARKS[name]))
    human_texts = [
        HumanText(at, ids, [], False) for at, ids in enumerate(bundle.tokenizer.encode(PROMPTS))
    ]
    made = continue_prompts(bundle, human_texts, DecodeConfig(beam=2), 7)
    for one, written in zip(
        made,
        score_continuations(bundle, human_texts, [(one.tokens, one.finished) for one in made]),
        strict=True,
    ):
        assert float(written.log_probs.sum()) == pytest.approx(one.log_probability, rel=1e-4)
    begin = len(MARKS[name].bos)
    most = fitting_new_tokens(bundle, 10, 65 - 10 - begin)  # all but the last token is read
    assert most + 10 + begin - 1 == 64
    with pytest.raises(UsageError, match="must sum"):
        fitting_new_tokens(bundle, 10, most + 1)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TRANSLATORS)
def test_outputs_are_as_long_as_positions_allow(name: str) -> None:
    """30 positions: the marks at the beginning are read too, the last token is not."""
    tokenizer = Letters(MARKS[name])
    endless = replace(tokenizer, usual=tokenizer.usual._replace(eos=3, forbidden=()))
    bundle = bundle_of(tokenizer, "translation", max_length=200, beam=1, n_best=1)
    with torch.no_grad():
        bundle.model.get_parameter("output.weight")[:SPECIAL] = 0
    ((one,),) = decode_texts(bundle.model, endless, ["ab"], bundle.decode)
    assert (len(one.text), one.finished) == (31 - len(MARKS[name].bos), False)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TRANSLATORS)
def test_each_head_has_its_map(name: str) -> None:
    """(layers, heads, target, source), each row a distribution. The sides are what is read, and what is
    written after what begins it."""
    tokenizer = Letters(MARKS[name])
    model = Translator(bundle_of(tokenizer, "translation"))
    seen = model.explain("abc", show="attention", target="de").numbers
    special_ids = tokenizer.special_ids
    assert seen["source"] == [
        *tokenizer.pieces(special_ids.prefix),
        "a",
        "b",
        "c",
        *tokenizer.pieces(special_ids.suffix),
    ]
    assert seen["target"] == ["d", "e", *tokenizer.pieces([special_ids.eos or 0])]
    weights = torch.tensor(seen["weights"])
    assert weights.shape == (3, 2, 3, len(seen["source"]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 3))


def test_marks_stand_around_what_is_read_and_written() -> None:
    batch = pair_batch([[7], [8, 9]], [[10, 11], [12]], MARKS["bart"])
    assert batch.source.tolist() == [[5, 7, 2, -1], [5, 8, 9, 2]]
    assert batch.inputs.tolist() == [[2, 5, 10, 11], [2, 5, 12, -1]]
    assert batch.targets.tolist() == [[IGNORE, 10, 11, 2], [IGNORE, 12, 2, IGNORE]]
    endless = pair_batch([[7]], [[10, 11]], MARKS["gpt1"])
    assert (endless.inputs.tolist(), endless.targets.tolist()) == ([[10]], [[11]])


def test_rules_forbid_the_marks_of_the_tokenizer() -> None:
    for name, special_ids in MARKS.items():
        rules = generation_options(DecodeConfig(), Letters(special_ids)).processors
        left = rules[0](None, torch.zeros(1, SIZE))[0]  # type: ignore[arg-type]
        assert (left == -float("inf")).nonzero()[:, 0].tolist() == sorted(special_ids.forbidden), (
            name
        )
