"""The verb prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Settings, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import counted, printable
from seqloom.tasks.prompting.options import PromptOptions

if TYPE_CHECKING:
    from seqloom.tasks.prompting.result import PromptResult


def prompt(
    folder: str,
    /,
    *data: Data,
    options: Annotated[PromptOptions, Parameter(name="*", negative="")],
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Measure a model on a task that is said and shown in its prompt.

    Nothing is trained. A template makes a prompt of each row; with --shots, solved examples stand before it.
    The likeliest of the answer choices is the answer, or the model writes one (--generate).

    Args:
        folder: A run folder of a language model or of text pairs.
        data: Tables, whose columns the template names; a table and a file with a label in each line; or
            labelled texts in any form that train reads.
        settings: key=value for data.* and, with --generate, decode.*.
        json: One line of JSON instead of the table.
    """
    given = read_settings(settings, ("data", "decode"))
    options.check()
    from seqloom.protocols import Request
    from seqloom.tasks.model import load

    request = Request(data=given.data, decode=given.decode)
    result = load(folder).prompt(data, request, **vars(options))
    if json:
        put_json(result.summary())
    else:
        _put_result(result)


def _put_result(result: PromptResult) -> None:
    rows: list[tuple[str, ...]] = []
    for kind in result.kinds:
        value, low, high = result.accuracy(kind)
        ties = sum(run.ties[kind] for run in result.runs)
        rows.append((kind, f"{value:.2f}", f"{low:.2f} to {high:.2f}", f"{ties:,}"))
    title = f"{printable(result.template)}: {counted(result.items, 'item')}, {counted(result.shots, 'shot')}"
    put_table(title, rows, ("answers by", "accuracy", "95 % interval", "ties"))
    if result.chance is not None:
        put(f"by chance: {result.chance:.2f}")
    _put_spread(result)
    for run in result.runs:
        if run.order == 0 and run.shots:
            labels = ", ".join(
                f"{count} of {printable(name)[:40]!r}" for name, count in run.shots.items()
            )
            put(f"shots of seed {run.seed}: {labels}")
    never = result.never_chosen()
    if never:
        named = ", ".join(printable(name)[:40] for name in never)
        put(f"never chosen by {result.kinds[0]}: {counted(len(never), 'answer')} ({named})")


def _put_spread(result: PromptResult) -> None:
    rows: list[tuple[str, ...]] = []
    for over, of_kind in (("seeds", result.over_seeds), ("orders", result.over_orders)):
        for kind in result.kinds:
            spread = of_kind(kind)
            if spread is not None:
                numbers = (spread.mean, spread.deviation, spread.min, spread.max)
                rows.append((over, kind, *(f"{number:.2f}" for number in numbers)))
    if rows:
        put("")
        header = ("over", "answers by", "mean", "deviation", "least", "most")
        put_table("How accuracy depends on the shots", rows, header)


VERB = Verb(
    prompt, "seqloom prompt runs/tales test.csv --template sentiment --shots 4 --examples train.csv"
)
