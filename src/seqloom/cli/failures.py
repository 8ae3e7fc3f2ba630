"""How a command ends that fails: one line on standard error, and an exit code."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass

import cyclopts

from seqloom.cli.process import write_error_line
from seqloom.errors import SeqloomError, one_line, printable
from seqloom.long_work import is_first_worker

WORKER_WAITS = 10.0
"""The most seconds that other workers wait for the first one to report an error. It ends them too."""
SIGNS_OF_SHORT_MEMORY = (
    "failed to map segment",
    "cannot allocate memory",
    "can't allocate memory",
    "can't start new thread",
    "not enough memory",
    "out of memory",
    "bad_alloc",
)
"""What the libraries say, whatever they raise."""


@dataclass(frozen=True)
class Failure:
    """The message of an error, and the exit code."""

    line: str
    exit_code: int
    is_known: bool = True
    """Whether all workers have the error, of which the first one tells. Else each tells of its own."""


def failure_of(error: BaseException) -> Failure:
    """The message of an error that ended a command."""
    match error:
        case KeyboardInterrupt():
            return Failure("", 130)
        case cyclopts.ValidationError() if error.exception_message:
            return Failure(error.exception_message, 2)
        case cyclopts.CycloptsError():
            return Failure(_of_words(error), 2)
        case SeqloomError():
            return Failure(str(error), error.exit_code)
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return _short_memory(error)
        case _ if any(sign in str(error).lower() for sign in SIGNS_OF_SHORT_MEMORY):
            return _short_memory(error)
        case OSError(strerror=reason) if reason:
            place = "" if error.filename is None else f"{printable(str(error.filename))}: "
            return Failure(f"{place}the system refuses ({reason})", 1)
    return Failure(
        f"{type(error).__name__}: {error} (run it again with --debug to see where)", 1, False
    )


def _of_words(error: cyclopts.CycloptsError) -> str:
    """The message about words that the command line cannot use."""
    verb = " ".join(error.command_chain or ())
    said = " ".join(str(error).split())
    if isinstance(error, cyclopts.MissingArgumentError) and verb and error.argument is not None:
        name = error.argument.names[0]
        said = f"{verb} needs {name}{' and a value after it' * name.startswith('-')}"
    return f"{said} (see seqloom {verb}{' ' * bool(verb)}--help)"


def _short_memory(error: BaseException) -> Failure:
    reason = one_line(f"{type(error).__name__}: {error}", 200)
    return Failure(
        f"memory is short ({reason}); close other programs, raise the limit, or take a smaller batch or"
        " model",
        1,
    )


def report(failure: Failure) -> int:
    """Writes the line. Of an error that all workers of `torchrun` have, only the first one does."""
    if failure.is_known and not is_first_worker():
        # torchrun ends all workers once one has ended: the first must have reported
        time.sleep(WORKER_WAITS)
    elif failure.line:
        write_error_line(f"seqloom: {one_line(failure.line)}")
    return failure.exit_code
