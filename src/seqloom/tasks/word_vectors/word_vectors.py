"""Trained word vectors, ready to be asked: near words, analogies, and how well they agree with people."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, final

import numpy as np

from seqloom.errors import DataError, UsageError, counted, printable, shown
from seqloom.evaluation.correlation import correlations
from seqloom.evaluation.intervals import wilson_interval
from seqloom.protocols import NO_REQUEST, Answer, Evaluation, Request
from seqloom.runs.progress import each_text
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config
from seqloom.tasks.model import TextModel, single_path
from seqloom.tasks.word_vectors.similarity_files import AnalogyQuestion, ScoredPair, read_word_tests
from seqloom.tasks.word_vectors.vector_space import Analogy, Near, Vectors, space_of

logger = logging.getLogger(__name__)

NEAREST = 10
"""Words that are shown, by default."""
_SUM = re.compile(r"\s+([+-])\s+")


@final
class WordVectorModel(TextModel):
    """vectors = seqloom.load("runs/vectors")
    vectors.similar("king"), vectors.analogy("man", "king", "woman"), vectors.vector("king")

    Raises UsageError for a word that has no vector.
    """

    reads: ClassVar = {
        "evaluate": frozenset({"lines"}),
        "predict": frozenset({"lines", "decode.n_best"}),
    }

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

    def analogy(self, a: str, b: str, c: str, count: int = NEAREST) -> list[Near]:
        """a is to b as c is to these words (3CosAdd)."""
        known = [self._known(word) for word in (a, b, c)]
        return self.space.sum_of([known[1], known[2]], [known[0]], count)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The nearest words of each text, which is a word or a sum such as `king - man + woman`."""
        return [_line(self._near(text, NEAREST, "texts", i)) for i, text in enumerate(texts, 1)]

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The nearest words of each line of a file; a blank one has none. Raises DataError, with the line,
        where a word has no vector."""
        self.check("predict", request, paths)
        path, count = single_path(paths), request.decode.get("n_best", NEAREST)
        texts = each_text(path, data_config(self.folder, request.data))
        for number, text in enumerate(texts, start=1):
            near = self._near(text, count, path, number) if text.strip() else []
            yield Answer(_line(near), {"text": text, "nearest": [one._asdict() for one in near]})

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """Files of pairs: the rank correlation of their cosines with the scores that people gave them. Files
        of analogies: the share that is right, by section. What has a word without a vector is counted, and
        not part of a score."""
        self.check("evaluate", request, paths)
        path = single_path(paths)
        pairs, questions = read_word_tests(path, data_config(self.folder, request.data))
        return self._pairs(pairs, path) if pairs else self._analogies(questions)

    def _pairs(self, pairs: list[ScoredPair], path: str) -> Evaluation:
        found = [one for one in pairs if self._there([one.first, one.second])]
        missing = len(pairs) - len(found)
        if len(found) < 2:
            raise DataError(
                "a correlation needs at least two pairs whose words have vectors, but there are"
                f" {len(found)} of {len(pairs)}",
                path,
            )
        _log_missing(missing, len(pairs), "pair")
        cosines = np.array([self.similarity(one.first, one.second) for one in found])
        metrics = correlations(cosines, np.array([one.score for one in found]))
        counts = {"pairs": len(found), "pairs_without_vector": missing}
        return Evaluation(metrics | counts, outputs=[f"{cosine:.6f}" for cosine in cosines])

    def _analogies(self, questions: list[AnalogyQuestion]) -> Evaluation:
        found = [one for one in questions if self._there([*one.words, one.answer])]
        missing = len(questions) - len(found)
        _log_missing(missing, len(questions), "analogy", "analogies")
        asked = [Analogy(*map(self._known, one.words)) for one in found]
        truth = [self._known(one.answer) for one in found]
        metrics: dict[str, float] = {}
        sections: dict[str, dict[str, float]] = {}
        methods: tuple[Literal["add", "multiply"], ...] = ("add", "multiply")
        outputs: list[str] = []
        for method in methods:
            answers = list(self.space.answers(asked, method))
            outputs = outputs or answers
            right = np.array([a == b for a, b in zip(answers, truth, strict=True)], bool)
            low, high = wilson_interval(float(right.sum()), len(right))
            share = 100 * right.mean() if len(right) else 0.0
            metrics |= {f"accuracy_{method}": share}
            metrics |= {f"accuracy_{method}_low": 100 * low, f"accuracy_{method}_high": 100 * high}
            for section in dict.fromkeys(one.section for one in found):
                of_section = right[[one.section == section for one in found]]
                part = sections.setdefault(section, {"questions": len(of_section)})
                part[f"accuracy_{method}"] = 100 * float(of_section.mean())
        counts = {"questions": len(found), "questions_without_vector": missing}
        return Evaluation(metrics | counts, outputs=outputs, details={"sections": sections})

    def _near(self, text: str, count: int, path: str, number: int) -> list[Near]:
        parts = _SUM.split(text.strip())
        words, signs = parts[::2], ["+", *parts[1::2]]
        try:
            known = [self._known(word) for word in words]
        except UsageError as error:
            raise DataError(str(error), path, number) from None
        if len(known) == 1:
            return self.space.nearest(known[0], count)
        plus = [word for word, sign in zip(known, signs, strict=True) if sign == "+"]
        minus = [word for word, sign in zip(known, signs, strict=True) if sign == "-"]
        return self.space.sum_of(plus, minus, count)

    def _known(self, word: str) -> str:
        """As the vocabulary has it."""
        written = self.run.tokenizer.normalise(word.strip())
        if written not in self.space.rows:
            raise UsageError(
                f"a word must have a vector, but {shown(word)} has none: it is not among the"
                f" {counted(len(self.space.words), 'word')} of {printable(str(self.folder))}"
            )
        return written

    def _there(self, words: Sequence[str]) -> bool:
        return all(self.run.tokenizer.normalise(word) in self.space.rows for word in words)


def _line(near: Sequence[Near]) -> str:
    return " ".join(f"{one.word} {one.cosine:.3f}" for one in near)


def _log_missing(missing: int, whole: int, one: str, more: str = "") -> None:
    if missing:
        logger.info(
            f"{missing:,} of {counted(whole, one, more)} have a word without a vector and are left out"
        )
