"""Trained word vectors, ready to be asked: near words, analogies, and how well they agree with people."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal, final

import numpy as np

from seqloom.errors import DataError, UsageError, counted, place, printable, shown
from seqloom.evaluation.correlation import correlations
from seqloom.evaluation.intervals import wilson_interval
from seqloom.evaluation.worst_examples import similarity_examples
from seqloom.protocols import NO_REQUEST, Answer, EvaluatedExample, Evaluation, Request
from seqloom.runs.progress import each_text
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.model import single_path
from seqloom.tasks.word_vectors.similarity_files import AnalogyQuestion, ScoredPair, read_word_tests
from seqloom.tasks.word_vectors.vector_space import Analogy, Near, Vectors, space_of

logger = logging.getLogger(__name__)

NEAREST = 10
"""Words that are shown, by default."""
_SIGN = re.compile(r"\s+([-+*/])\s+")


@final
class WordVectorModel(ExplainedModel):
    """vectors = seqloom.load("runs/vectors")
    vectors.similar("king"), vectors.analogy("man", "king", "woman"), vectors.vector("king")

    Raises UsageError for a word that has no vector. With n-grams of characters (model.buckets) every word has
    one that is as long as the shortest of them.
    """

    reads: ClassVar = {
        "evaluate": frozenset({"lines"}),
        "explain": frozenset(),
        "predict": frozenset({"lines", "decode.n_best"}),
    }
    pictures: ClassVar = frozenset({"words"})

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        self.space = space_of(run)

    def vector(self, word: str) -> Vectors:
        """`(width,)`."""
        return self.space.vector(self._known(word))

    def similarity(self, first: str, second: str) -> float:
        """The cosine of two words."""
        return self.space.similarity(self._known(first), self._known(second))

    def similar(self, word: str, count: int = NEAREST) -> list[Near]:
        """The words nearest to a word."""
        return self.space.nearest(self._known(word), count)

    def analogy(
        self,
        a: str,
        b: str,
        c: str,
        count: int = NEAREST,
        method: Literal["add", "multiply"] = "add",
    ) -> list[Near]:
        """a is to b as c is to these words, by 3CosAdd or by 3CosMul."""
        minus, *plus = [self._known(word) for word in (a, b, c)]
        near = self.space.sum_of if method == "add" else self.space.product_of
        return near(plus, [minus], count)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The nearest words of each text, which is a word, a sum such as `king - man + woman` (3CosAdd), or
        a product such as `king / man * woman` (3CosMul)."""
        return [_line(self._near(text, NEAREST, "texts", i)) for i, text in enumerate(texts, 1)]

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The nearest words of each line of a file; a blank one has none. Raises DataError, with the line,
        where a word has no vector."""
        self.check("predict", request, paths)
        path, count = single_path(paths), request.decode.get("n_best", NEAREST)
        unseen = 0
        for number, text in enumerate(each_text(path, data_config(self.folder, request.data)), 1):
            content: dict[str, object] = {"text": text, "nearest": []}
            near = self._near(text, count, path, number) if text.strip() else []
            content["nearest"] = [neighbour._asdict() for neighbour in near]
            if made := [word for word in _SIGN.split(text)[::2] if self._is_unseen(word)]:
                content["unseen"] = made
                unseen += len(made)
            yield Answer(_line(near), content)
        _log_unseen(unseen)

    def default_show(self) -> str:
        return "words"

    def word_table(self, words: Sequence[str]) -> tuple[Vectors, list[int]]:
        kept = [index for index, word in enumerate(words) if self._there([word])]
        rows = [self.vector(words[index]) for index in kept]
        return np.stack(rows) if rows else np.zeros((0, 1), np.float32), kept

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        """Raises UsageError: it reads no texts."""
        raise UsageError(f"word vectors are shown with --show words, not {look.show}")

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """Files of pairs: the rank correlation of their cosines with the scores that people gave them. Files
        of analogies: the share that is right, by section. What has a word without a vector is counted, and
        not part of a score."""
        self.check("evaluate", request, paths)
        path = single_path(paths)
        pairs, questions = read_word_tests(path, data_config(self.folder, request.data))
        return self._pairs(pairs, path) if pairs else self._analogies(questions, path)

    def _pairs(self, pairs: list[ScoredPair], path: str) -> Evaluation:
        found = [pair for pair in pairs if self._there([pair.first, pair.second])]
        missing = len(pairs) - len(found)
        if len(found) < 2:
            raise DataError(
                "a correlation needs at least two pairs whose words have vectors, but there are"
                f" {len(found)} of {len(pairs)}",
                path,
            )
        _log_missing(missing, len(pairs), "pair")
        cosines = np.array([self.similarity(pair.first, pair.second) for pair in found])
        scores = np.array([pair.score for pair in found])
        examples = similarity_examples(
            [(place(path, pair.line), f"{pair.first} {pair.second}") for pair in found],
            scores,
            cosines,
        )
        metrics = correlations(cosines, scores)
        words = {word for pair in found for word in (pair.first, pair.second)}
        counts = {"pairs": len(found), "pairs_without_vector": missing, **self._unseen(words)}
        outputs = [example.answer for example in examples]
        return Evaluation(metrics | counts, outputs=outputs, examples=examples)

    def _analogies(self, questions: list[AnalogyQuestion], path: str) -> Evaluation:
        found = [
            question
            for question in questions
            # an answer is one of the words that were seen
            if self._there(question.words) and self._written(question.answer) in self.space.rows
        ]
        missing = len(questions) - len(found)
        _log_missing(missing, len(questions), "analogy", "analogies")
        asked = [Analogy(*map(self._known, pair.words)) for pair in found]
        truth = [self._known(pair.answer) for pair in found]
        metrics: dict[str, float] = {}
        sections: dict[str, dict[str, float]] = {}
        methods: tuple[Literal["add", "multiply"], ...] = ("add", "multiply")
        examples: list[EvaluatedExample] = []
        for method in methods:
            answers = list(self.space.answers(asked, method))
            right = np.array([a == b for a, b in zip(answers, truth, strict=True)], bool)
            examples = examples or [
                EvaluatedExample(
                    place(path, question.line), " ".join(question.words), answer, given, is_right
                )
                for question, answer, given, is_right in zip(
                    found, truth, answers, right.astype(float).tolist(), strict=True
                )
            ]
            low, high = wilson_interval(float(right.sum()), len(right))
            share = 100 * right.mean() if len(right) else 0.0
            metrics |= {f"accuracy_{method}": share}
            metrics |= {f"accuracy_{method}_low": 100 * low, f"accuracy_{method}_high": 100 * high}
            for section in dict.fromkeys(pair.section for pair in found):
                of_section = right[[pair.section == section for pair in found]]
                part = sections.setdefault(section, {"questions": len(of_section)})
                part[f"accuracy_{method}"] = 100 * float(of_section.mean())
        words = {word for pair in found for word in pair.words}
        counts = {
            "questions": len(found),
            "questions_without_vector": missing,
            **self._unseen(words),
        }
        return Evaluation(
            metrics | counts,
            outputs=[example.answer for example in examples],
            details={"sections": sections},
            examples=examples,
        )

    def _near(self, text: str, count: int, path: str, number: int) -> list[Near]:
        parts = _SIGN.split(text.strip())
        words, signs = parts[::2], parts[1::2]
        try:
            known = [self._known(word) for word in words]
        except UsageError as error:
            raise DataError(str(error), path, number) from None
        if not signs:
            return self.space.nearest(known[0], count)
        if {*signs} & {*"+-"} and {*signs} & {*"*/"}:
            raise DataError(
                f"a text must be a word, a sum or a product of words, but is {shown(text)}",
                path,
                number,
            )
        plus, minus = [known[0]], list[str]()
        for word, sign in zip(known[1:], signs, strict=True):
            (plus if sign in "+*" else minus).append(word)
        near = self.space.sum_of if signs[0] in "+-" else self.space.product_of
        return near(plus, minus, count)

    def _written(self, word: str) -> str:
        """As the vocabulary has it, which may be with what joins the words of a phrase (`data.phrases`)."""
        written = self.run.tokenizer.normalise(word.strip())
        joined = "_".join(written.split())
        return joined if joined in self.space.rows else written

    def _known(self, word: str) -> str:
        """As the vocabulary has it."""
        written = self._written(word)
        if self.space.find(written) is None:
            raise UsageError(
                f"a word must have a vector, but {shown(word)} has none: it is not among the"
                f" {counted(len(self.space.words), 'word')} of {printable(str(self.folder))}"
            )
        return written

    def _there(self, words: Sequence[str]) -> bool:
        return all(self.space.find(self._written(word)) is not None for word in words)

    def _is_unseen(self, word: str) -> bool:
        """Whether it has a vector, but one made of its n-grams alone."""
        return self._there([word]) and self._written(word) not in self.space.rows

    def _unseen(self, words: Iterable[str]) -> dict[str, int]:
        count = sum(map(self._is_unseen, words))
        _log_unseen(count)
        return {"unseen_words": count} if count else {}


def _line(near: Sequence[Near]) -> str:
    return " ".join(f"{neighbour.word} {neighbour.cosine:.3f}" for neighbour in near)


def _log_missing(missing: int, whole: int, one: str, more: str = "") -> None:
    if missing:
        logger.info(
            f"{missing:,} of {counted(whole, one, more)} have a word without a vector and are left out"
        )


def _log_unseen(count: int) -> None:
    if count:
        logger.info(
            f"{counted(count, 'word')} without a vector of its own: the mean of its n-grams takes its place"
        )
