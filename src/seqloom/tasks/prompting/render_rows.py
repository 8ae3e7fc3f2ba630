"""Renders prompt templates, in a process of its own whose time and memory are bounded.

A template is a program of its author. Jinja's sandbox keeps it from files and from Python; the limits of the
process keep it from running or growing without end. One JSON object comes in (`template.py` sends it), one
JSON list goes out. Imports nothing of seqloom.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2.0
"""For one row."""
LONGEST = 1_000_000
"""Characters of a rendered prompt."""
MEMORY = 2**31
"""Bytes of the process."""
BAR = "|||"
"""What separates prompt and target, and answers from each other."""
_BAR_IN_DATA = "\0bar\0"
"""In place of a bar in the data, which hold no NUL."""
_KEPT = {"label", "label_name", "labels"}

Row = dict[str, Any]


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja without access to Python, with the filters of promptsource. Only `update` of a dictionary may
    change a value, as templates of E2E do; it changes a copy of the row at most."""

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined)
        self.random = random.Random(0)
        self.filters["choice"] = lambda items: self.random.choice(list(items))
        self.filters["most_frequent"] = _most_frequent
        self.globals["zip"] = zip

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        updates = type(obj) is dict and attr == "update"
        return updates or super().is_safe_attribute(obj, attr, value)


def _most_frequent(items: Any) -> list[Any]:
    """What occurs most often, in the order of the first occurrence."""
    counts = Counter(items)
    return [item for item in counts if counts[item] == max(counts.values())]


class Renderer:
    """The template of a request, compiled."""

    def __init__(self, request: Row) -> None:
        self.sandbox = Sandbox()
        self.prompt = self.sandbox.from_string(request["jinja"])
        choices: str | None = request["choices"]
        self.choices = None if choices is None else self.sandbox.from_string(choices)
        self.fields = request["fields"]
        self.expressions = {
            name: self.sandbox.compile_expression(text, undefined_to_none=False)
            for name, text in self.fields.items()
        }
        self.labels: dict[str, str] | None = request["labels"]
        self.content_free: str | None = request["content_free"]
        read_by_choices = self._reads(choices or "")
        self.kept = _KEPT | read_by_choices
        read = self.kept | self._reads(request["jinja"])
        for name, text in self.fields.items():
            read |= self._reads("{{" + text + "}}") - {name}
        unread = self.fields.keys() - read
        if unread:
            raise UnreadFieldError(min(unread))

    def _reads(self, jinja: str) -> set[str]:
        """The names that a template takes from its row."""
        return meta.find_undeclared_variables(self.sandbox.parse(jinja))

    def with_fields(self, row: Row) -> Row:
        """The row with the fields that the user defines: a column, or an expression over columns."""
        complete = dict(row)
        for name, text in self.fields.items():
            if text in row:
                complete[name] = row[text]
            else:
                complete[name] = self.expressions[name]({"row": row, **complete})
                # raises where it is undefined
                str(complete[name])
        return complete

    def with_label(self, row: Row, names: list[str]) -> Row:
        """The row with what is known of its label: its number, where labels are numbered, and its name."""
        if "label" not in row:
            return row
        label, written = row["label"], str(row["label"])
        if self.labels is not None:
            if written not in self.labels:
                known = ", ".join(self.labels)
                raise ValueError(f"the label {written[:60]!r} is none of --labels {known}")
            label, written = list(self.labels).index(written), self.labels[written]
        return {**row, "label": label, "label_name": written, "labels": names}

    def render(self, row: Row) -> Row:
        """The choices of a row, the parts of its prompt, and the prompt without content."""
        choices: list[str] | None = None
        values = _protected(row)
        if self.choices is not None:
            self.sandbox.random.seed(json.dumps(row, sort_keys=True))
            choices = _parts(self.choices.render(values))
        parts = self._prompt(row, values, choices)
        content_free = None
        if self.content_free is not None and choices is not None:
            blank = {
                name: value if name in self.kept or type(value) is not str else self.content_free
                for name, value in values.items()
            }
            try:
                content_free = self._prompt(row, blank, choices)[0]
            except (TemplateError, TypeError, ValueError, IndexError, KeyError):
                content_free = None
        label = row.get("label_name")
        return {"choices": choices, "parts": parts, "content_free": content_free, "label": label}

    def _prompt(self, row: Row, values: Row, choices: list[str] | None) -> list[str]:
        self.sandbox.random.seed(json.dumps(row, sort_keys=True))
        more = {} if choices is None else {"answer_choices": _protected(choices)}
        return _parts(self.prompt.render({**values, **more}))


def _parts(text: str) -> list[str]:
    if len(text) > LONGEST:
        raise ValueError(f"a rendered prompt must have at most {LONGEST:,} characters")
    return [part.replace(_BAR_IN_DATA, BAR).strip() for part in text.split(BAR)]


def _protected(value: Any) -> Any:
    """A copy of a value, without bars."""
    match value:
        case str():
            return value.replace(BAR, _BAR_IN_DATA)
        case list():
            return [_protected(item) for item in value]
        case dict():
            return {key: _protected(item) for key, item in value.items()}
    return value


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"takes longer than {SECONDS:g} seconds")


def _names_of_labels(renderer: Renderer, rows: list[Row]) -> list[str]:
    """Those that are given, else all that occur."""
    if renderer.labels is not None:
        return list(renderer.labels.values())
    found = {row["label"] for row in rows if type(row.get("label")) in (str, int, float)}
    has_text = any(type(label) is str for label in found)
    return list(map(str, sorted(found, key=str if has_text else None)))


class UnreadFieldError(Exception):
    """A field that the user defines and nothing reads."""


class RowError(Exception):
    """A template that fails for a row."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


def _each(rows: list[Row], change: Callable[[Row], Row]) -> list[Row]:
    """What becomes of each row, in bounded time."""
    done: list[Row] = []
    for row in rows:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            done.append(change(row))
        except MemoryError:
            raise RowError(len(done), f"needs more than {MEMORY >> 20} MiB") from None
        except Exception as error:  # noqa: BLE001  # a template may raise anything
            raise RowError(len(done), str(error) or type(error).__name__) from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return done


def render(request: Row) -> list[Row]:
    """What becomes of each row: `choices`, `parts`, `content_free`, `label`; or one `error` with the number
    of its `row`, if it is that of a row."""
    try:
        renderer = Renderer(request)
        count = len(request["rows"])
        complete = _each([*request["rows"], *request["others"]], renderer.with_fields)
        names, rows = _names_of_labels(renderer, complete), complete[:count]
        return _each(rows, lambda row: renderer.render(renderer.with_label(row, names)))
    except RowError as error:
        return [{"error": str(error), "row": error.number}]
    except UnreadFieldError as error:
        return [{"error": f"reads no {error}, which --field defines; leave it out", "row": None}]
    except TemplateError as error:
        problem = str(error) or type(error).__name__
        return [{"error": f"is not Jinja that can be used: {problem}", "row": None}]


def _limit(what: int, most: int) -> None:
    """Bounds a resource of this process, below what already bounds it."""
    _, hard = resource.getrlimit(what)
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (bound, hard))


def main() -> None:
    request = json.load(sys.stdin)
    _limit(resource.RLIMIT_CPU, request["seconds"])
    _limit(resource.RLIMIT_AS, MEMORY)
    signal.signal(signal.SIGALRM, _out_of_time)
    json.dump(render(request), sys.stdout)


if __name__ == "__main__":
    main()
