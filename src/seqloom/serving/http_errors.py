"""Errors of requests: a status, a line that names the field, and nothing of the request itself."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping

from pydantic import ValidationError

from seqloom.errors import SeqloomError, bounded, printable
from seqloom.serving.engine import OverloadedError, StoppedError

logger = logging.getLogger(__name__)

KINDS = {400: "invalid_request_error", 401: "authentication_error", 429: "overloaded_error"}


class RequestError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            return {"Retry-After": "1"}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}

    @property
    def content(self) -> dict[str, object]:
        """As OpenAI writes it."""
        default = "server_error" if self.status >= 500 else KINDS[400]
        return {
            "error": {
                "message": bounded(printable(self.message)),
                "type": KINDS.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(param: str, message: str, code: str | None = None) -> RequestError:
    """400 for a field that is not what it must be."""
    return RequestError(400, f"{param} {message}", param, code)


def of_validation(error: ValidationError) -> RequestError:
    """400 for the first field that does not have the right type, or that nobody knows."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = problem["loc"]
    field = printable(str(place[0]))[:100] if place else "body"
    if problem["type"] == "extra_forbidden":
        return invalid(field, "is not known here, or not supported; leave it out")
    return invalid(field, f"is not what it must be: {problem['msg'][:300]}")


def of_error(error: Exception, folders: Mapping[str, str]) -> RequestError:
    """What a model, or its settings, said about a request. Only messages of ours are passed on, with names of
    models in place of their `folders`."""
    match error:
        case RequestError():
            return error
        case OverloadedError():
            return RequestError(429, str(error))
        case StoppedError():
            return RequestError(503, str(error))
        case SeqloomError(exit_code=2):
            message = str(error)
            for folder, name in folders.items():
                message = message.replace(folder, name)
            return RequestError(400, message)
    logger.error(f"a request failed: {type(error).__name__}{where(error)}")
    return RequestError(500, "the model failed on this request; the log of the server says how")


def of_command(error: SeqloomError, folders: Mapping[str, str], field: str) -> RequestError:
    """What a command said, with the names of fields in place of those of its options; of `field` where it
    names none."""
    told = of_error(error, folders)
    option = re.match(r"--([a-z]+)", told.message)
    message = re.sub(r"--(?=[a-z])", "", told.message)
    return RequestError(told.status, message, field if option is None else option[1])


def where(error: BaseException) -> str:
    """The line of ours that an error comes from, without its message."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "seqloom" in frame.filename
    ]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
