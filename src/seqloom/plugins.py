"""Plugins: modules from outside that register cells, models, tasks, objectives, metrics and decoding rules.

A plugin is loaded because the user names it (`--plugin`, or an import in Python), or because it is installed
and a name is not known without it (the entry points `seqloom.plugins`). A run folder says which plugins its
model needs, but nothing is ever loaded because a file says so. Imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Container, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from seqloom.errors import FolderError, SeqloomError, UsageError, printable
from seqloom.files import regular
from seqloom.json_values import as_list, as_object, as_text

T = TypeVar("T")

ENTRY_POINTS = "seqloom.plugins"
"""The group of entry points whose modules are plugins."""
KIND_OF_KEY = {
    "task": "task",
    "name": "model",
    "model_type": "model",
    "cell": "cell",
    "objective": "objective",
    "best": "metric",
    "processors": "logits processor",
}
"""Key of a configuration -> what it names."""

registered: dict[tuple[str, str], str] = {}
"""(kind, name) -> the plugin that registered it."""
loaded: dict[str, str] = {}
"""Module of a plugin that was loaded here -> how it was named."""
_loading: list[str] = []


def register(
    kind: str, name: str, value: T, known: MutableMapping[str, T], taken: Container[str] = ()
) -> None:
    """Adds `value` to the known values of its kind, for the module that calls the caller. Raises UsageError
    if the name is taken."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(
            f"the name of the {kind} must be of letters, digits, _ . and -, but is {name!r}"
        )
    if name in known or name in taken:
        raise UsageError(
            f"the name of the {kind} must be new, but another {kind} is called {name!r}"
        )
    known[name] = value
    registered[kind, name] = _loading[-1] if _loading else _caller()


def _caller() -> str:
    """The module that called `register_...`; a script by its file."""
    variables = sys._getframe(3).f_globals
    name, file = str(variables["__name__"]), variables.get("__file__")
    return Path(file).stem if name == "__main__" and file else name


def names(kind: str) -> list[str]:
    """What plugins registered of a kind."""
    return [name for of_kind, name in registered if of_kind == kind]


def is_known(name: object, known: Container[object]) -> bool:
    """Whether a name is known, if need be after the installed plugins are loaded."""
    if name not in known:
        load_installed()
    return name in known


@cache
def load_installed() -> None:
    """Loads the plugins of installed packages."""
    for entry in entry_points(group=ENTRY_POINTS):
        load_plugin(entry.module)


def load_plugin(name: str) -> None:
    """Imports a plugin: the path of a .py file, or the dotted name of a module. Raises UsageError if it
    cannot be imported."""
    is_file = name.endswith(".py")
    module, origin = (Path(name).stem, str(Path(name).resolve())) if is_file else (name, name)
    if module in loaded:
        if loaded[module] == origin:
            return
        raise UsageError(
            f"two plugins must have two names, but {printable(name)} and"
            f" {printable(loaded[module])} are both {module}; rename one of the files"
        )
    try:
        with _loading_as(module, origin):
            if is_file:
                _import_file(module, origin)
            else:
                importlib.import_module(module)
    except SeqloomError:
        raise
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}")
        raise UsageError(f"the plugin {printable(name)} cannot be loaded ({reason})") from error


@contextmanager
def _loading_as(module: str, origin: str) -> Iterator[None]:
    """A context in which what is registered is this plugin's, which is loaded unless an error ends it."""
    loaded[module] = origin
    _loading.append(module)
    try:
        yield
    except BaseException:
        del loaded[module]
        raise
    finally:
        _loading.pop()


def _import_file(module: str, path: str) -> None:
    if module in sys.modules:
        if getattr(sys.modules[module], "__file__", None) == path:
            return  # it was imported
        raise ImportError(f"there is a module {module} already; rename the file")
    try:
        spec = importlib.util.spec_from_file_location(module, regular(Path(path)))
    except FolderError as error:
        raise UsageError(f"the plugin {error}") from None
    assert spec is not None
    assert spec.loader is not None
    # dataclasses look their module up there
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException:
        del sys.modules[module]
        raise


def plugins_used(content: object) -> list[str]:
    """The plugins without which a configuration, as plain data, means nothing."""
    used = (registered.get((kind, name)) for kind, name in _named(content))
    return sorted({plugin for plugin in used if plugin is not None})


def _named(content: object) -> Iterator[tuple[str, str]]:
    """(kind, name) of all that is named in plain data; `name=value` names `name`."""
    for key, value in (as_object(content) or {}).items():
        if key in KIND_OF_KEY:
            for name in as_list(value) or [value]:
                if (text := as_text(name)) is not None:
                    yield KIND_OF_KEY[key], text.partition("=")[0]
        yield from _named(value)


def require_plugins(needed: object, where: str) -> None:
    """Raises UsageError if a plugin is needed that was not loaded. `needed` is a list in a file."""
    for plugin in needed if isinstance(needed, Iterable) else ():
        last = str(plugin).rpartition(".")[2]
        if not _is_loaded(last):
            load_installed()
        if not _is_loaded(last):
            raise UsageError(
                f"{printable(where)} needs the plugin {printable(str(plugin))}; give it with --plugin and the"
                f" path of {printable(last)}.py or the name of its module, or import it first in Python"
            )


def _is_loaded(last: str) -> bool:
    """Whether a plugin has this last part of its module's name: a file and a dotted name are the same."""
    return any(plugin.rpartition(".")[2] == last for plugin in (*loaded, *registered.values()))
