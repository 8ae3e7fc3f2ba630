"""Turns of a talk as one prompt, as the chat template of a checkpoint writes them.

A special token counts where the template writes it. What people write never becomes one: its spelling is put
aside while the template is rendered.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqloom.json_values import as_list, as_text, field_of
from seqloom.protocols import StoredTokenizer
from seqloom.serving.http_errors import invalid

PROGRAM = Path(__file__).parent / "render_chat.py"
SECONDS = 30
"""For the process that renders, on a machine that others use; it has two seconds of a processor."""
LONGEST_TEMPLATE = 2**17
"""Characters."""
LONGEST = 2**20
"""Characters of a rendered prompt."""
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
ASIDE = "\ue000{}\ue001"
"""Stands for the name of a special token in what people write. Characters of private use, which are removed
from it before."""


def template_of(tokenizer: StoredTokenizer) -> str | None:
    """The chat template that came with a tokenizer, of several the one called default."""
    content: object = tokenizer.tokenizer_config.get("chat_template")
    for named_template in as_list(content) or ():
        if field_of(named_template, "name") == "default":
            content = field_of(named_template, "template")
    template = as_text(content)
    return template if template is not None and len(template) <= LONGEST_TEMPLATE else None


def chat_ids(
    tokenizer: StoredTokenizer, template: str, messages: Sequence[Mapping[str, str]]
) -> list[int]:
    """The prompt after which the next turn is the model's. Raises RequestError where the template refuses the
    messages, fails, or takes too long."""
    special = {
        tokenizer.pieces([id])[0]: id
        for id, spelled in enumerate(tokenizer.token_bytes)
        if not spelled
    }
    # the longest name first: <s> may begin another
    names = sorted(filter(None, special), key=len, reverse=True)
    anywhere = re.compile("|".join(map(re.escape, names)) or r"(?!)")
    values = {
        "messages": [
            {"role": one["role"], "content": set_aside(one["content"], anywhere, names)}
            for one in messages
        ],
        "add_generation_prompt": True,
    }
    config = tokenizer.tokenizer_config
    values |= {role: named(config.get(role)) for role in ROLES}
    text = rendered(template, values)
    ids: list[int] = []
    begin = 0
    for found in [*anywhere.finditer(text), None]:
        end = len(text) if found is None else found.start()
        part = re.sub(ASIDE.format(r"(\d+)"), lambda aside: names[int(aside[1])], text[begin:end])
        if part:
            ids += tokenizer.encode([part])[0]
        if found is not None:
            ids.append(special[found[0]])
            begin = found.end()
    return ids


def set_aside(content: str, anywhere: re.Pattern[str], names: Sequence[str]) -> str:
    clean = content.replace("\ue000", "").replace("\ue001", "")
    return anywhere.sub(lambda found: ASIDE.format(names.index(found[0])), clean)


def named(token: object) -> str:
    """The name of a special token, which may be an object with its options."""
    return as_text(token) or as_text(field_of(token, "content")) or ""


def rendered(template: str, values: Mapping[str, object]) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(PROGRAM)],
            input=json.dumps({"template": template, "values": values}),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise invalid("messages", "cannot be written by the chat template in time") from None
    if done.returncode:
        raise invalid("messages", "cannot be written by the chat template in its time and memory")
    answer: dict[str, str] = json.loads(done.stdout)
    if "error" in answer:
        raise invalid("messages", f"cannot be written by the chat template: {answer['error']}")
    if len(answer["text"]) > LONGEST:
        raise invalid("messages", f"must be at most {LONGEST:,} characters as a prompt")
    return answer["text"]
