"""Options as other programs have them: each becomes the option or the `--set` that it means, and an unknown
one is answered with near names. The words are in `familiar_names.py`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache

import cyclopts

from seqloom.config import SECTIONS
from seqloom.errors import UsageError, printable
from seqloom.familiar_names import (
    ANSWER_BY_NAME,
    MODEL_NAMES,
    OPTION_BY_NAME,
    SETTINGS_BY_NAME,
    did_you_mean,
)

TRAINING = ("train", "model", "head", "data", "decode", "evaluate")
"""Sections of a verb that trains, in the order in which they are searched."""
USING = ("decode", "data", "evaluate", "train", "model", "head")
"""Those of a verb that uses a trained model."""
TRAINING_VERBS = ("train", "check", "compare")
OPTION = re.compile(r"--?[A-Za-z][\w-]*(=.*)?", re.DOTALL)
OFF = {"true": "false", "sample": "greedy", "bfloat16": "float32"}
"""What a switch with this value is, where it is off."""
EVERYWHERE = ("--help", "-h", "--version", "--debug", "--quiet", "--plugin")


def understood(
    app: cyclopts.App, verb: str, words: Sequence[str], others: Callable[[], Mapping[str, str]]
) -> tuple[list[str], list[str]]:
    """The words after a verb, and what was read in another way, as `--lr 3 is --set train.learning_rate=3`.
    Raises UsageError for an option that means nothing; `others` are names that it may be near to."""
    own = {
        name: argument.token_count()[0]
        for argument in app[verb].assemble_argument_collection()
        for name in argument.names
        if name.startswith("-")
    }
    own |= dict.fromkeys(EVERYWHERE, 0)
    result: list[str] = []
    notices: list[str] = []
    remaining = deque(words)
    while remaining:
        word = remaining.popleft()
        option, equals, value = word.partition("=")
        spelled = option.replace("_", "-") if option.startswith("--") else option
        if not OPTION.fullmatch(word):
            result.append(word)
        elif spelled in own:
            result.append(word)
            if own[spelled] and not equals and remaining:
                result.append(remaining.popleft())
        else:
            request = _Option(option, value if equals else None, remaining)
            new = _meant(request, verb, own, others)
            result += new
            notices.append(f"{option} is read as {printable(' '.join(new)) or 'nothing'}")
    return result, notices


@dataclass(frozen=True)
class _Option:
    """An option that is not ours, and where its value comes from."""

    word: str
    given: str | None
    """The value after its = sign."""
    remaining: deque[str]
    """The words after it."""

    def value(self, ours: str) -> str:
        """Raises UsageError where there is none."""
        if self.given is not None:
            return self.given
        if not self.remaining or OPTION.fullmatch(self.remaining[0]):
            raise UsageError(f"{self.word} needs a value, as in {ours}")
        return self.remaining.popleft()

    def is_on(self) -> bool:
        """Of a switch, which may have been given as --bf16 True."""
        words = self.remaining
        if self.given is None and words and words[0].casefold() in ("true", "false"):
            return words.popleft().casefold() == "true"
        return (self.given or "true").casefold() != "false"


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_").casefold()


def _meant(
    option: _Option, verb: str, own: Mapping[str, int], others: Callable[[], Mapping[str, str]]
) -> list[str]:
    """Our words for an option of others."""
    name = _plain(option.word)
    ours = OPTION_BY_NAME.get(name, "")
    if ours in own:
        return [ours, option.value(ours)]
    if name in ANSWER_BY_NAME:
        raise UsageError(f"there is no option {option.word}: {ANSWER_BY_NAME[name]}")
    sections = TRAINING if verb in TRAINING_VERBS else USING
    setting = _setting(name, sections)
    if setting is None:
        near = did_you_mean(name, {**{word: word for word in own}, **others()})
        raise UsageError(f"there is no option {option.word}{near} (see seqloom {verb} --help)")
    shown = _as_setting(setting)
    if "--set" not in own:
        raise UsageError(f"{verb} has no option {option.word}; verbs that train take {shown}")
    if "=" not in setting:
        return ["--set", f"{setting}={option.value(shown)}"]
    if option.is_on():
        return ["--set", setting]
    key, _, value = setting.partition("=")
    return ["--set", f"{key}={OFF[value]}"] if value in OFF else []


def _setting(name: str, sections: Sequence[str]) -> str | None:
    """The setting of this name, by our own word or that of others, in the first section that has one."""
    named = [key for key in _all_settings() if key.partition(".")[2] == name]
    named += SETTINGS_BY_NAME.get(name, [])
    by_section = {key.partition(".")[0]: key for key in reversed(named)}
    return next((by_section[section] for section in sections if section in by_section), None)


@cache
def _all_settings() -> tuple[str, ...]:
    return tuple(
        f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in fields(kind)
    )


def names_of_the_program(verbs: Iterable[str]) -> dict[str, str]:
    """What a person may name anywhere -> how it is given: verbs, settings, tasks, models."""
    from seqloom.models import all_families
    from seqloom.registry import task_names

    known = {verb: f"seqloom {verb}" for verb in verbs}
    for key in _all_settings():
        known.setdefault(key.partition(".")[2], _as_setting(key))
    for name, keys in SETTINGS_BY_NAME.items():
        known.setdefault(name, _as_setting(keys[0]))
    known |= {task: f"seqloom train {task}" for task in task_names()}
    return known | {model: f"--model {model}" for model in (*all_families(), *MODEL_NAMES)}


def _as_setting(key: str) -> str:
    return f"--set {key}" if "=" in key else f"--set {key}=VALUE"
