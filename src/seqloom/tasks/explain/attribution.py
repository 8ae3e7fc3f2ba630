"""What each word adds to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqloom.errors import UsageError, printable
from seqloom.explaining.coloured_text import coloured_text
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.signed_bars import MOST_BARS, signed_bars
from seqloom.explaining.studies.attribution import integrated_gradients, leave_one_out
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput, Word

if TYPE_CHECKING:
    import altair as alt

MOST_LINES = 10
"""Words that are printed."""


def explain_attribution(given: ModelInput, look: Look) -> Explanation:
    """Raises UsageError if nothing is answered, or the words cannot be told apart."""
    if given.score is None:
        raise UsageError("this model answers nothing that could be explained; see --show")
    words, score = list(given.words()), given.score()
    if not words:
        raise UsageError("a text must have a word that the model reads, but there is none")
    places = [word.places for word in words]
    special_ids = given.tokenizer.special_ids
    numbers: dict[str, object] = {"asked": score.asked, "method": look.method}
    if look.method == "integrated-gradients":
        found = integrated_gradients(given.model, given.batch, places, score.of, _bases(given))
        shares = found.shares.tolist()
        known = {None: "vectors of 0", special_ids.pad: "padding", special_ids.mask: "the mask"}
        baseline = "vectors of 0" if found.base is None else known[found.base]
        numbers |= {"score": found.score, "baseline": baseline, "baseline_score": found.baseline}
        numbers |= {"completeness_error": found.error, "points": found.points}
        how = (
            f"Integrated gradients from {baseline}, {found.points} points: the words sum to F(x) - F(b) ="
            f" {found.score:.3f} - {found.baseline:.3f}, completeness error {found.error:.1e}."
        )
    else:
        replacement, done = _replacement(given)
        end = special_ids.eos if special_ids.unk is None else special_ids.unk
        total, falls = leave_one_out(
            given.batch, places, score.of, replacement=replacement, of_nothing=end or 0
        )
        shares = falls.tolist()
        numbers |= {"score": total, "left_out": done}
        how = f"How much F(x) = {total:.3f} falls where a word is {done}."
    numbers |= {"words": [word.text for word in words], "parts": [word.part for word in words]}
    numbers |= {"shares": shares}
    title = f"What each word adds to F = {score.asked}"
    return Explanation(
        show="attribution",
        numbers={**given.numbers, **numbers},
        text=[*([given.answer] if given.answer else []), how, *_lines(words, shares)],
        draw=lambda: _draw(words, shares, title, how),
    )


def _bases(given: ModelInput) -> list[int | None]:
    """The tokens that a path may begin at."""
    special_ids = given.tokenizer.special_ids
    if special_ids.mask is not None:
        return [special_ids.mask]
    return [None, special_ids.pad] if special_ids.pad >= 0 else [None]


def _replacement(given: ModelInput) -> tuple[int | None, str]:
    """The token in the place of a word that is left out, None if it is deleted; and what is done, in
    words. A head that asks single places must keep them. Raises UsageError if it cannot."""
    special_ids = given.tokenizer.special_ids
    if special_ids.mask is not None:
        return special_ids.mask, "masked"
    if not given.batch.places.shape[1]:
        return None, "deleted"
    if special_ids.unk is None:
        raise UsageError(
            "to leave a word out of a text whose places are asked needs a mask or an unknown token, and this"
            " tokenizer has neither; use --method integrated-gradients"
        )
    return special_ids.unk, "unknown"


def _lines(words: Sequence[Word], shares: Sequence[float]) -> list[str]:
    """The words that add or take most, first."""
    order = sorted(range(len(words)), key=lambda at: -abs(shares[at]))
    return [f"{shares[index]:+.4f}\t{printable(words[index].text)}" for index in order[:MOST_LINES]]


def _draw(words: Sequence[Word], shares: Sequence[float], title: str, how: str) -> alt.LayerChart:
    labels = [f"{word.text} ({word.part})" if word.part else word.text for word in words]
    if len(words) <= MOST_BARS:
        return signed_bars(labels, shares, name="added to F", title=title, subtitle=how)
    notes = {"text": [word.part or "text" for word in words]}
    texts = [word.text for word in words]
    return coloured_text(
        texts, shares, name="added to F", title=title, subtitle=how, signed=True, notes=notes
    )
