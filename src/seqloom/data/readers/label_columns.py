"""Which columns of a table hold a text, a second one and what is to be said of them, and the records they
make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record, Wanted, listed, require
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError, place, printable

TEXTS = (
    "text",
    "sentence",
    "content",
    "document",
    "review",
    "tweet",
    "message",
    "comment",
    "utterance",
    "query",
    "question",
)
PAIRS = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question_1", "question_2"),
    ("source", "target"),
)
"""The first and the second of two texts; the last only where there must be two."""
LABELS = ("label", "labels", "gold_label", "category", "class", "intent", "sentiment", "topic")
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "label", "stars")
"""Names of columns that are known without being told."""
KNOWN = frozenset((*TEXTS, *LABELS, *SCORES, *(name for pair in PAIRS for name in pair)))


def labelled_columns(*, pairs: bool | None, answers: bool, number: bool) -> Wanted:
    """`pairs`: whether there are two texts, None where the header says so; `answers`: whether there are
    labels, of which `number` makes a score."""
    second = ("second",) if pairs is not False else ()
    score = ("score", "label") if number else ("label",)
    alone = ("text", "second")[: 1 + bool(pairs)]
    if answers:
        alone = (*alone, "score") if number else ()

    def choose(
        names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
    ) -> dict[str, str]:
        chosen = texts_of(names, options, path, line, pairs=pairs, last=number or bool(pairs))
        if answers:
            role = "score" if number and (options.score is not None or options.label is None) else "label"
            known = SCORES if number else LABELS
            chosen["label"] = one_column(
                role, "score" if number else "label", known, names, options, path, line
            )
        if answers and options.group is not None:
            require("group", options.group, names, path, line, "column")
            chosen["group"] = options.group
        say_guesses(chosen, options, report, path, {"label": "score"} if number else {})
        return chosen

    def record(fields: dict[str, str], path: str, line: int, report: ReadReport) -> Iterator[Record]:
        if "score" in fields:  # of a table without a header
            fields["label"] = fields.pop("score")
        if any("\n" in fields.get(role, "") for role in ("text", "second")):
            report.keep("a line break inside a text", path, line)
        return labelled_record(fields, path, line, report, blanks=not answers)

    roles = ("text", *second, *(score if answers else ()), *(("group",) if answers else ()))
    return Wanted(choose, record, roles, loose=("label", "group"), known=KNOWN, alone=alone)


def texts_of(
    names: list[str],
    options: DataConfig,
    path: str,
    line: int | None,
    *,
    pairs: bool | None,
    last: bool,
    known: Sequence[str] = TEXTS,
) -> dict[str, str]:
    """The columns of the text (several are joined) and of the second one, where there is one. Raises
    DataError where they are not known."""
    folded = folded_names(names)
    couples = (
        []
        if pairs is False
        else [both for both in (PAIRS if last else PAIRS[:-1]) if all(name in folded for name in both)]
    )
    second = options.second if pairs is not False else None
    require("second", second, names, path, line, "column")
    parts = (
        [] if options.text is None else [options.text] if options.text in names else options.text.split(",")
    )
    for part in parts:
        require("text", part, names, path, line, "column")
    if options.text is not None:
        couples = [both for both in couples if folded[both[0]] == options.text]
    if second is not None:
        couples = [both for both in couples if folded[both[1]] == second]
    if couples and second is None:
        second = folded[couples[0][1]]
    if pairs and second is None:
        both = ("text", "second") if options.text is None else ("second",)
        raise unknown_columns("two texts" if len(both) > 1 else "second text", both, names, path, line)
    if parts:
        chosen = {"text" if at == 0 else f"text {at}": part for at, part in enumerate(parts)}
    elif couples:
        chosen = {"text": folded[couples[0][0]]}
    else:
        chosen = {
            "text": one_column(
                "text", "text", known, [name for name in names if name != second], options, path, line, names
            )
        }
    return chosen if second is None else {**chosen, "second": second}


def folded_names(names: Sequence[str]) -> dict[str, str]:
    """Names by themselves, and by their small letters where no other is so written."""
    return {name.strip().casefold(): name for name in reversed(names)} | {name: name for name in names}


def one_column(
    role: str,
    what: str,
    known: Sequence[str],
    names: list[str],
    options: DataConfig,
    path: str,
    line: int | None,
    found: list[str] | None = None,
) -> str:
    """The column that `data.role` names, or the first of these names that is there. Raises DataError where
    there is none."""
    asked: str | None = getattr(options, role)
    require(role, asked, names, path, line, "column")
    folded = folded_names(names)
    guess = asked or next((folded[name] for name in known if name in folded), None)
    if guess is None:
        raise unknown_columns(what, (role,), found or names, path, line)
    return guess


def unknown_columns(
    what: str, roles: Sequence[str], names: list[str], path: str, line: int | None
) -> DataError:
    """What is said of columns that neither a setting nor their names tell."""
    which = "the columns of the" if len(roles) > 1 else "the column of the"
    settings = " ".join(f"--set data.{role}=NAME" for role in roles)
    known = "are not known" if len(roles) > 1 else "is not known"
    return DataError(
        f"{which} {what} {known} by name (found: {listed(names)}); say which with {settings}", path, line
    )


def say_guesses(
    chosen: dict[str, str], options: DataConfig, report: ReadReport, path: str, called: dict[str, str]
) -> None:
    """Remarks which columns were guessed; a column of the role's own name is no guess. `called`: roles that
    have another name."""
    asked = {"text": options.text, "second": options.second, "label": options.label or options.score}
    names = {
        called.get(role, role): name for role, name in chosen.items() if role in asked and asked[role] is None
    }
    guessed = {role: name for role, name in names.items() if name.strip().casefold() != role}
    if guessed:
        said = ", ".join(f"{printable(name)!r} is taken as {role}" for role, name in guessed.items())
        report.note(
            f"{place(path)}: {said}; to take others:"
            f" {' '.join(f'--set data.{role}=NAME' for role in guessed)}"
        )


def labelled_record(
    fields: dict[str, str], path: str, line: int, report: ReadReport, *, blanks: bool = False
) -> Iterator[Record]:
    """The record of a text or two, or none where one is blank, unless blank ones are wanted too."""
    if "text 1" in fields:
        text = " ".join(fields.pop(role) for role in list(fields) if role.startswith("text"))
        fields = {"text": text, **fields}
    sides = [fields[role] for role in ("text", "second") if role in fields]
    if blanks or all(side.strip() for side in sides):
        yield Record(fields, path, line)
    else:
        report.skip(
            "one side of the pair is blank" if any(side.strip() for side in sides) else "the text is blank",
            path,
            line,
        )


def refuse_columns(options: DataConfig) -> None:
    """Raises UsageError where a setting for tables is given and there is no table."""
    for role in ("text", "second", "label", "score", "group"):
        if getattr(options, role) is not None:
            raise UsageError(
                f"data.{role} names a column, so the file must be a table (csv, tsv, jsonl, parquet), but it"
                " is none"
            )
