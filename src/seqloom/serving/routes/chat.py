"""Chats: only with the template of a checkpoint, which says how turns become one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from seqloom.runs.run_folder import LoadedRun
from seqloom.serving.http_errors import RequestError
from seqloom.serving.routes.bodies import Message


def chat_prompt(run: LoadedRun, messages: Sequence[Message]) -> list[int]:
    """The ids of a chat. Raises RequestError for a model without a template."""
    raise RequestError(
        400,
        "this model has no chat template, so it knows no turns; ask /v1/completions with a prompt",
        "messages",
    )


@final
class ChatShape:
    """/v1/chat/completions"""

    prefix = "chatcmpl"

    def kind(self, stream: bool) -> str:
        return "chat.completion.chunk" if stream else "chat.completion"

    def choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str
    ) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": chat_logprobs(logprobs),
            "finish_reason": reason,
        }

    def piece(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text} if text else {}
        return {
            "index": index,
            "delta": delta,
            "logprobs": chat_logprobs(logprobs),
            "finish_reason": reason,
        }


def chat_logprobs(logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same numbers as chats show them."""
    if logprobs is None:
        return None
    content = []
    for token, log_prob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        alternatives = [
            {"token": other, "logprob": value, "bytes": None} for other, value in top.items()
        ]
        content.append(
            {"token": token, "logprob": log_prob, "bytes": None, "top_logprobs": alternatives}
        )
    return {"content": content}
