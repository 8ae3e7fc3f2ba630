"""Which columns of a table hold a text, a second one and their label or score, and the records they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Header, Record, TableSchema, folded
from seqloom.data.formats.data_file import DataFile
from seqloom.errors import UsageError

TEXTS = (
    "text", "sentence", "content", "document", "review", "tweet", "message", "comment", "utterance", "query",
    "question",
)  # fmt: skip
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
"""Names of columns that are recognised."""
KNOWN = frozenset((*TEXTS, *LABELS, *SCORES, *(name for pair in PAIRS for name in pair)))


def labelled_schema(*, pairs: bool | None, answers: bool, number: bool) -> TableSchema:
    """`pairs`: whether there are two texts, None if the header says so; `answers`: whether there are
    labels, which are scores where `number` is set."""
    title, known = ("score", SCORES) if number else ("label", LABELS)
    headerless = ("text", "second")[: 1 + bool(pairs)]
    settings = ("text",) if pairs is False else ("text", "second")
    if answers:
        headerless = (*headerless, "score") if number else ()
        settings = (*settings, *(("score", "label") if number else ("label",)), "group")

    def choose(header: Header) -> dict[str, str]:
        options = header.file.options
        chosen = text_columns(header, pairs=pairs, any_pair=number or bool(pairs))
        if answers:
            by_score = number and (options.score is not None or options.label is None)
            setting = "score" if by_score else "label"
            chosen["label"] = header.find(setting, title, known)
            group = header.named("group")
            if group is not None:
                chosen["group"] = group
        note_guesses(chosen, header.file, title)
        return chosen

    def record(fields: dict[str, str], file: DataFile, line: int) -> Iterator[Record]:
        if "score" in fields:  # of a table without a header
            fields["label"] = fields.pop("score")
        if any("\n" in fields.get(role, "") for role in ("text", "second")):
            file.keep("a line break inside a text", line)
        return labelled_record(fields, file, line, blanks=not answers)

    return TableSchema(
        choose=choose,
        record=record,
        settings=settings,
        known=KNOWN,
        headerless=headerless,
        loose=("label", "group"),
        items=("text", "second")[: 1 + bool(pairs)] + ("label",) * answers,
    )


def text_columns(
    header: Header, *, pairs: bool | None, any_pair: bool, known: Sequence[str] = TEXTS
) -> dict[str, str]:
    """The columns of the text (several are joined) and of the second one, where there is one. Raises
    DataError if they are not known."""
    columns, text = header.by_name(), header.named("text")
    second = None if pairs is False else header.named("second")
    for couple in () if pairs is False else PAIRS if any_pair else PAIRS[:-1]:
        first, other = columns.get(couple[0]), columns.get(couple[1])
        if first and other and text in (None, first) and second in (None, other):
            text, second = first, other
            break
    if pairs and second is None:
        if text is None:
            raise header.unknown("the two texts", ["text", "second"])
        raise header.unknown("the second text", ["second"])
    if text is None:
        text = header.without([second]).first(known) or header.find("text", "text", ())
    return {"text": text} if second is None else {"text": text, "second": second}


def note_guesses(chosen: dict[str, str], file: DataFile, title: str = "label") -> None:
    """Notes which columns were guessed; a column with the name of its role is not a guess. `title`: what a
    label is called."""
    options = file.options
    named = {
        "text": options.text,
        "second": options.second,
        "label": options.label or options.score,
    }
    guesses = {}
    for role, name in chosen.items():
        setting = title if role == "label" else role
        if role in named and named[role] is None and folded(name) != setting:
            guesses[setting] = (name, setting)
    if guesses:
        file.note_guesses(guesses)


def labelled_record(
    fields: dict[str, str], file: DataFile, line: int, *, blanks: bool = False
) -> Iterator[Record]:
    """The record of a text or two; none where one is blank, unless blank ones are read too."""
    sides = [fields[role].strip() for role in ("text", "second") if role in fields]
    if blanks or all(sides):
        yield Record(fields, file.path, line)
    elif any(sides):
        file.skip("one side of the pair is blank", line)
    else:
        file.skip("the text is blank", line)


def refuse_columns(options: DataConfig) -> None:
    """Raises UsageError if a setting for tables is given and there is no table."""
    for setting in ("text", "second", "label", "score", "group"):
        if vars(options)[setting] is not None:
            raise UsageError(
                f"data.{setting} names a column, so the file must be a table (csv, tsv, jsonl, parquet), but"
                " it is none"
            )
