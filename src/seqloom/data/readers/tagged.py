"""Sentences with a tag for each word, of whatever form: columns, CoNLL-U, `word_TAG`, spans in JSON, lists in
JSONL; or plain words without tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from seqloom.config import DataConfig
from seqloom.data.formats.columns import (
    Row,
    TableSchema,
    Wanted,
    choose_columns,
    full_record,
)
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import ending, form_or, read_rows
from seqloom.data.formats.json_documents import read_document, rows_of_document
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.conll import read_conll
from seqloom.data.readers.conllu import read_conllu
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.records import plain_texts
from seqloom.data.readers.tag_scheme import TagCheck
from seqloom.data.readers.tagged_spans import read_tagged_spans
from seqloom.data.readers.word_tags import read_word_tags
from seqloom.errors import UsageError, printable
from seqloom.json_values import as_list, as_object, as_text, field_of

FORMS = {
    ".conllu": "conllu",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".zip": "tagged",
    ".pos": "tagged",
}
"""The form of a file by how its name ends (before `.gz`); all else is columns."""
COLUMNS = (".conll", ".iob", ".iob2", ".bio", ".tsv", ".tab", ".col", ".annotated")
"""Ends of names that are columns also where no tags are needed; in others a line is then a sentence."""

WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels")
"""Names of lists in JSONL that are recognised."""


def read_tagged(
    paths: Sequence[str], options: DataConfig, report: ReadReport, *, answers: bool = True
) -> Iterator[TaggedWords]:
    """The sentences of all files, one after the other; with `answers` false tags need not exist, and plain
    text will do.

    Raises what the readers of the forms raise, and DataError if a file has no sentence.
    """
    nothing = "there is no sentence in it that can be used"
    for path in paths:
        file = DataFile(path, options, report)
        read = _READERS[_form(file, answers)]
        with report.reading([path], nothing, required=answers):
            for sentence in read(file, answers):
                report.used += 1
                yield sentence


def _form(file: DataFile, answers: bool) -> str:
    form = file.options.format
    if form == "tsv":
        return "conll"
    if form != "auto":
        if form not in _READERS:
            raise UsageError(
                f"words with tags must be in one of the forms {', '.join(_READERS)}, but data.format is"
                f" {form}"
            )
        return form
    suffix = ending(file.path)
    if suffix in FORMS:
        return FORMS[suffix]
    if answers or suffix in COLUMNS:
        return "conll"
    file.note("a line is taken as a sentence; of a word a line: --set data.format=conll")
    return "text"


def read_words(file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """A sentence a line, its words between spaces and without tags; a blank line, or one that is skipped, has
    no words."""
    if answers:
        raise UsageError(
            "plain text has no tags; name files of words and tags (conll, conllu, tagged or json)"
        )
    for record in plain_texts(file):
        words = record.fields["text"].replace("\t", " ").split(" ")
        yield TaggedWords(tuple(filter(None, words)), (), file.path, record.line)


def read_tag_lists(file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """A sentence a row of JSONL, JSON or Parquet, `{"tokens": ["I", "am"], "tags": ["PRON", "AUX"]}`, under
    the names `data.text` and `data.label`, or one of the names WORDS and one of TAGS.

    Raises DataError, with the line, where they are no lists of texts or not of one length.
    """
    form = form_or("jsonl", file.path, file.options)
    return _of_rows(read_rows(file, form, _lists(answers)), file, answers)


def read_json(file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """Rows of lists, or texts in parts (`tagged_spans.py`)."""
    content = read_document(file)
    whole = as_object(content)
    parts = [content] if whole is None else list(whole.values())
    items = [item for part in parts for item in as_list(part) or ()]
    if items and not any(as_list(field_of(item, "data")) for item in items):
        return _of_rows(rows_of_document(content, file, _lists(answers)), file, answers)
    return read_tagged_spans(content, file, answers)


def _lists(answers: bool) -> TableSchema:
    wanted = [Wanted("text", "tokens", WORDS), Wanted("label", "tags", TAGS)][: 1 + answers]
    return TableSchema(
        choose=partial(choose_columns, wanted=wanted),
        record=full_record,
        settings=(),
        known=frozenset(),
        headerless=(),
    )


def _of_rows(rows: Iterator[Row], file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    check = TagCheck(file) if answers else None
    reason = "sentence whose words or tags are wrong"
    for row in rows:
        yield from filter(None, file.usable(partial(_of_lists, row, check), reason, row.line))


def _of_lists(row: Row, check: TagCheck | None) -> TaggedWords | None:
    file, line = row.file, row.line
    words = file.clean(_texts(row, "text"), line)
    if words is None:
        return None
    if check is None:
        return TaggedWords(tuple(words), (), file.path, line)
    tags = _texts(row, "label")
    if len(tags) != len(words):
        raise file.error(
            f"there must be as many tags as words, but there are {len(tags)} for {len(words)}", line
        )
    return TaggedWords(tuple(words), check.checked(tags, [line] * len(tags)), file.path, line)


def _texts(row: Row, role: str) -> list[str]:
    """The list of words, or of tags."""
    found = as_list(row.values[role])
    texts = [text for text in map(as_text, found or ()) if text is not None and text.strip(" ")]
    if not found or len(texts) < len(found):
        raise row.file.error(
            f"there must be a list of texts, none of them blank, under {printable(row.columns[role])}; tags"
            " by name, not by number",
            row.line,
        )
    return texts


_READERS: dict[str, Callable[[DataFile, bool], Iterator[TaggedWords]]] = {
    "conll": read_conll,
    "conllu": read_conllu,
    "tagged": read_word_tags,
    "json": read_json,
    "jsonl": read_tag_lists,
    "parquet": read_tag_lists,
    "text": read_words,
}
