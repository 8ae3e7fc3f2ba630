"""Renders a chat template, in a process of its own whose time and memory are bounded.

A template is a program of its author. Jinja's sandbox keeps it from files and from Python; the limits of the
process keep it from running or growing without end. One JSON object comes in (`chat_prompt.py` sends it), one
goes out: `text`, or `error`. Imports nothing of seqloom.
"""

from __future__ import annotations

import json
import resource
import sys

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2
"""Of a processor."""
MEMORY = 2**29
"""Bytes of the process."""


def refuse(message: str) -> None:
    """What templates call where they cannot write the messages."""
    raise TemplateError(message)


def render(template: str, values: dict[str, object]) -> str:
    """Blocks are trimmed as in transformers, for which templates are written."""
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    sandbox.globals["raise_exception"] = refuse
    return sandbox.from_string(template).render(values)


def main() -> None:
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        answer = {"text": render(request["template"], request["values"])}
    except Exception as error:  # noqa: BLE001  # a template may raise anything
        answer = {"error": str(error)[:400] or type(error).__name__}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
