"""Prompt templates: files in the form of promptsource (Bach et al. 2022), and six of our own.

    jinja: "{{premise}} Question: {{hypothesis}} True or False? ||| {{answer_choices[label]}}"
    answer_choices: "True ||| False"

Before the bar stands the prompt, after it the target; a template with `answer_choices` is a choice among
these. Jinja runs in `render_rows.py`, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from seqloom.errors import DataError, FolderError, UsageError, one_line, printable, quoted
from seqloom.files import read_text
from seqloom.json_values import JsonObject, as_object, as_text, as_whole_number, field_of
from seqloom.run_file import read_yaml
from seqloom.tasks.prompting.prompt_rows import PromptRow

OURS = Path(__file__).parent / "templates"
PROGRAM = Path(__file__).parent / "render_rows.py"
TAGS = ("!Template", "!TemplateMetadata")
LONGEST = 2**20
"""Bytes of a file of templates."""
SECONDS = 10
"""Of a processor, for the process that renders; with many rows more."""
CONTENT_FREE = "N/A"
"""It replaces each text in a prompt without content (Zhao et al. 2021)."""


@final
@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """A template as it is written."""

    name: str
    path: str
    jinja: str
    answer_choices: str | None
    task: str | None = None
    """The task as which files are read, where a template of ours says so."""


class RenderedRow(NamedTuple):
    """A row rendered by a template."""

    prompt: str
    targets: tuple[str, ...]
    """Right answers; one where there are choices."""
    choices: tuple[str, ...] | None
    content_free: str | None
    """The prompt with N/A in place of each text, for calibration; None if it cannot be made."""
    label: str | None
    """What the shots are balanced by."""
    row: PromptRow


def our_templates() -> list[str]:
    """The names of our own templates."""
    return sorted(path.stem for path in OURS.glob("*.yaml"))


def read_template(given: str, name: str | None) -> PromptTemplate:
    """The template of a file, or one of ours by its name. Raises UsageError if there is none, or where a
    file has several and `name` (or its id) does not say which."""
    path = str(OURS / f"{given}.yaml") if given in our_templates() else given
    if not Path(path).is_file():
        raise UsageError(
            f"{printable(given)}: a template must be a YAML file, or one of {', '.join(our_templates())}"
        )
    try:
        content = read_yaml(read_text(Path(path), LONGEST), path, TAGS)
    except FolderError as error:
        raise UsageError(str(error)) from None
    found = as_object(field_of(content, "templates"))
    if not found:
        raise UsageError(
            f"{printable(path)}: must have `templates:`, a template by each id, as promptsource has it"
        )
    named = []
    for key, value in found.items():
        if (template := as_object(value)) is not None:
            named.append((str(template.get("name", key)), key, template))
    chosen = [candidate for candidate in named if name is None or name in candidate[:2]]
    if len(chosen) != 1:
        wrong = (
            "say which"
            if name is None
            else f"{len(chosen)} are named {printable(name)!r}; say which"
        )
        raise UsageError(
            f"{printable(path)}: has {len(named)} templates; {wrong} with --name:"
            f" {quoted([name for name, *_ in named])} (an id tells those of one name apart)"
        )
    title, _, content_of = chosen[0]
    jinja, choices = as_text(content_of.get("jinja")), as_text(content_of.get("answer_choices"))
    if jinja is None or (choices is None and content_of.get("answer_choices") is not None):
        raise UsageError(
            f"{printable(path)}: template {printable(title)!r} must have `jinja`, a text, and may have"
            " `answer_choices`, a text"
        )
    task = field_of(content, "task")
    return PromptTemplate(
        name=title,
        path=given,
        jinja=jinja,
        answer_choices=choices,
        task=None if task is None else str(task),
    )


def render(
    template: PromptTemplate,
    rows: Sequence[PromptRow],
    fields: Mapping[str, str],
    labels: Mapping[str, str] | None,
    others: Sequence[PromptRow] = (),
) -> list[RenderedRow]:
    """What the template makes of each row, without rows for which it is empty. `fields` are columns, or
    expressions over columns, under other names; `labels` is the name of each label in the order of their
    numbers, by default all that occur in these rows and in `others`. Raises UsageError for a template that
    is none, DataError if it fails for a row."""
    request = {
        "jinja": template.jinja,
        "choices": template.answer_choices,
        "fields": dict(fields),
        "labels": None if labels is None else dict(labels),
        "content_free": CONTENT_FREE,
        "rows": [row.fields for row in rows],
        "others": [row.fields for row in others] if labels is None else [],
        "seconds": SECONDS + (len(rows) + len(others)) // 20,
    }
    answers = _in_own_process(request, template)
    if answers and "error" in answers[0]:
        _refuse(template, [*rows, *others], answers[0])
    rendered = []
    for row, answer in zip(rows, answers, strict=True):
        prompt, *targets = answer["parts"]
        choices = answer["choices"]
        if prompt or any(targets):
            rendered.append(
                RenderedRow(
                    prompt=prompt,
                    targets=tuple(filter(None, targets)),
                    choices=None if choices is None else tuple(choices),
                    content_free=answer["content_free"],
                    label=answer["label"],
                    row=row,
                )
            )
    return rendered


def _in_own_process(request: JsonObject, template: PromptTemplate) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = one_line(done.stderr.strip().splitlines()[-1]) if done.stderr.strip() else "stopped"
        raise UsageError(
            f"{printable(template.path)}: template {printable(template.name)!r} must be rendered in bounded"
            f" time and memory, but its process ended with {done.returncode} ({said}); simplify it"
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _refuse(template: PromptTemplate, rows: Sequence[PromptRow], answer: JsonObject) -> None:
    problem = one_line(str(answer["error"]), 400)
    which = f"template {printable(template.name)!r} of {printable(template.path)}"
    number = as_whole_number(answer["row"])
    if number is None:
        raise UsageError(f"{which} {problem}")
    row = rows[number]
    hint = ""
    if "undefined" in problem or "has no" in problem:
        hint = (
            f" (columns: {quoted(list(row.fields))}); name a column as the template has it with --field"
            " NAME=COLUMN, or number labels with --labels FIRST,SECOND"
        )
    raise DataError(f"{which} fails for this row: {problem}{hint}", row.path, row.line)
