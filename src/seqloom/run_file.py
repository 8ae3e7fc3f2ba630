"""Run files and settings as configurations: read, checked and written. The schema is in `config.py`."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from seqloom.config import SECTIONS, MixedTaskConfig, RunConfig
from seqloom.errors import FolderError, UsageError, printable
from seqloom.familiar_names import SETTINGS_BY_NAME
from seqloom.files import read_text
from seqloom.json_values import as_object, as_text
from seqloom.plugins import require_plugins

C = TypeVar("C")
RunContent = dict[str, Any]
"""What a run file holds, by section, before it is checked."""
LONGEST_NUMBER = 1024
"""Bits of a whole number in YAML."""
MOST_KEYS = 1000
"""Of a mapping in a run file."""
MOST_PROBLEMS = 10
"""That one message lists."""
LONGEST_NAME = 100
"""Characters of a key that are compared with those of the known ones."""
LONGEST = 2**20
"""Bytes of a run file."""


def parse(kind: type[C], content: Mapping[str, object], prefix: str = "") -> C:
    """`content` as a configuration of this kind. Raises UsageError that names every problem at once."""
    checker = _checker(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        return cast(C, checker.validate_python(_tuples(content)))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True)
        problems = [_problem(kind, dict(detail), prefix) for detail in details[:MOST_PROBLEMS]]
        if len(details) > MOST_PROBLEMS:
            problems.append(f"and {len(details) - MOST_PROBLEMS:,} more are wrong")
        raise UsageError("; ".join(dict.fromkeys(problems))) from None


@cache
def _checker(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _tuples(content: object) -> object:
    """YAML has lists where the schema has tuples."""
    match content:
        case dict():
            return {key: _tuples(value) for key, value in content.items()}
        case list():
            return tuple(content)
    return content


def _problem(kind: type, error: dict[str, Any], prefix: str) -> str:
    path = [
        str(part)
        for part in error["loc"]
        if not str(part).startswith(("function-", "tagged-", "constrained-", "literal["))
    ]
    path = [part for part in path if part not in ("int", "float", "bool", "str", "none")]
    name = prefix + ".".join(path)
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = known_keys(kind, prefix)
        if path[:1] == ["tasks"]:
            known += known_keys(MixedTaskConfig, f"{prefix}{'.'.join(path[:2])}.")
        return unknown_key(name, known)
    if error["type"] in ("missing", "missing_argument"):
        return f"{name} must be given"
    match error.get("ctx"):
        case {"error": UsageError() as cause}:
            return str(cause)
    shown = printable(repr(error["input"]))
    if type(error["input"]) is bool and "string" in error["msg"]:
        return f"{name} must be text, but is {shown} (YAML reads no, yes, on and off as such: quote it)"
    if error["type"] == "tuple_type":
        return f"{name} must be a list, but is {shown}; write [{printable(str(error['input']))}]"
    rule = str(error["msg"]).replace("Input should be", "must be").replace("Value error, ", "")
    return f"{name} {rule}, but is {shown}"


def known_keys(kind: type, prefix: str = "") -> list[str]:
    """Every key of a configuration, dotted."""
    hints = get_type_hints(kind)
    keys: list[str] = []
    for field in dataclasses.fields(kind):
        nested = hints[field.name]
        keys += (
            known_keys(nested, f"{prefix}{field.name}.")  # type: ignore[arg-type]
            if dataclasses.is_dataclass(nested)
            else [prefix + field.name]
        )
    return keys


def unknown_key(name: str, known: list[str]) -> str:
    """The message for an unknown key. The key of this name in another section is proposed, or what comes
    nearest in its own; where there is no such section, what comes nearest of all."""
    section, _, field = name[:LONGEST_NAME].partition(".")
    if meant := [key for key in SETTINGS_BY_NAME.get(field or section, ()) if _is_key(key, known)]:
        return f"there is no setting {printable(name)}; did you mean {' or '.join(meant)}?"
    of_section = [key for key in known if key.startswith(section + ".")]
    if of_section:
        prefix = len(section) + 1
        fields = [key[prefix:] for key in of_section]
        near = [key for key in known if key.partition(".")[2] == field]
        near += [f"{section}.{name}" for name in difflib.get_close_matches(field, fields, n=1)]
    else:
        near = difflib.get_close_matches(name[:LONGEST_NAME], known, n=1)
    # all keys of all sections would fill a screen
    listed = of_section or list(dict.fromkeys(key.partition(".")[0] for key in known))
    return f"there is no setting {printable(name)}" + (
        f"; did you mean {near[0]}?" if near else f"; known are {', '.join(listed)}"
    )


def _is_key(setting: str, known: Sequence[str]) -> bool:
    return setting.partition("=")[0] in known


def read_run_file(path: str) -> RunContent:
    """The content of a run file. Raises UsageError if it is not a YAML mapping, is too large or has tags
    or aliases."""
    try:
        text = read_text(Path(path), LONGEST)
    except FolderError as error:
        raise UsageError(str(error)) from None
    content = as_object(read_yaml(text, path))
    if content is None:
        raise UsageError(
            f"{printable(path)}: a run file must be a mapping such as `train: {{max_steps: 60}}`"
        )
    require_plugins(content.get("plugins"), path)
    for section in (*SECTIONS, "model"):
        if as_object(content.setdefault(section, {})) is None:
            raise UsageError(
                f"{printable(path)}: {section} must be a mapping such as `train: {{max_steps: 60}}`"
            )
    return content


def read_yaml(text: str, where: str, tags: Sequence[str] = ()) -> Any:
    """Safe YAML: no tags but these, which mark mappings and are left out, no aliases, no duplicate keys;
    numbers such as 1e-4 are numbers."""
    try:
        return yaml.load(text, Loader=_loader(tags))  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise _not_yaml(f"{printable(where)}{line}", error.problem or error) from None
    except (yaml.YAMLError, RecursionError, ValueError, KeyError) as error:
        raise _not_yaml(printable(where), error) from None


def _not_yaml(place: str, reason: object) -> UsageError:
    shown = printable(" ".join(str(reason).split()))
    return UsageError(f"{place}: is not YAML as such a file may use it ({shown})")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without aliases (which can grow without end) and without duplicate keys."""

    allowed: ClassVar[frozenset[str]] = frozenset()
    """Tags that may be there."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if isinstance(parent, yaml.MappingNode) and len(parent.value) > MOST_KEYS:
            raise yaml.composer.ComposerError(
                None, None, f"a mapping has more than {MOST_KEYS} keys", parent.start_mark
            )
        event = self.peek_event()  # type: ignore[no-untyped-call]
        # an alias has no tag
        if vars(event).get("tag") not in {None, *self.allowed}:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "tags are not allowed", mark)
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None,
                None,
                "aliases are not allowed",
                self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        return super().compose_node(parent, index)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """A number that Python can show: of hexadecimal ones it reads any length."""
        number = int(self.construct_yaml_int(node))
        if number.bit_length() > LONGEST_NUMBER:
            problem = f"a whole number must have at most {LONGEST_NUMBER} bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return number

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        occurrences = Counter(map(str, keys))
        for key, (key_node, _) in zip(keys, node.value, strict=True):
            if as_text(key) is None:
                problem = f"a key must be text, but is {key!r}: quote it"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if occurrences[key] > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} occurs twice", key_node.start_mark
                )
        return super().construct_mapping(node, deep=True)


def _loader(tags: Sequence[str]) -> type[_Loader]:
    """The loader to which these tags are known."""

    class TaggedLoader(_Loader):
        allowed = frozenset(tags)

    for tag in tags:
        TaggedLoader.add_constructor(tag, TaggedLoader.construct_mapping)
    return TaggedLoader


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def apply_settings(content: RunContent, settings: Sequence[str]) -> RunContent:
    """`content` with each `key=value` set; values are YAML. Raises UsageError if one has no `=`."""
    merged: RunContent = {key: copy(value) for key, value in content.items()}
    for setting in settings:
        key, equals, value = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals:
            raise UsageError(
                f"--set must be key=value such as train.max_steps=60, but is {printable(repr(setting))}"
            )
        if not dot or section not in (*SECTIONS, "model"):
            raise UsageError(unknown_key(key, [*known_keys(RunConfig), "model.name", "model.size"]))
        part = as_object(merged.setdefault(section, {}))
        if part is None:
            raise UsageError(
                f"{section} must be a mapping, but is {printable(repr(merged[section]))}"
            )
        name = name.replace("-", "_")
        part[name] = (
            value
            if _is_text(section, name) and value != "null"
            else read_yaml(value, f"--set {key}")
        )
    return merged


def _is_text(section: str, name: str) -> bool:
    """Whether a setting is text, which is not read as YAML: a delimiter |, the language no."""
    kind = _hints(SECTIONS[section]).get(name) if section in SECTIONS else None
    return kind is str or kind == str | None


_hints = cache(get_type_hints)


def to_plain(value: object) -> Any:
    """A configuration as what YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(vars(value)[field.name]) for field in dataclasses.fields(value)
        }
    match value:
        case dict():
            return {key: to_plain(item) for key, item in value.items()}
        case list() | tuple():
            return [to_plain(item) for item in value]
    return value


def run_file_text(config: RunConfig) -> str:
    """The YAML of a run, in the order of the schema."""
    head = (
        "# The resolved configuration of this run. To train it again: seqloom train --config run.yaml"
        " --output-dir NEW\n"
    )
    content = to_plain(config)
    for part in ("tasks", "plugins"):
        if not content[part]:
            del content[part]
    return head + str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
