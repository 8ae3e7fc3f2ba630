"""Files and folders that are either whole or not there: atomic writes, locks, opening what a user named."""

from __future__ import annotations

import difflib
import errno
import fcntl
import gzip
import hashlib
import json
import math
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from seqloom.errors import DataError, FolderError, UsageError, printable, shown
from seqloom.json_values import as_object

LOCK = ".lock"


SMALL = 2**26
"""The most bytes of settings, JSON and the like, which are read whole."""


def open_binary(path: str, *, pipe: bool = True) -> BinaryIO:
    """The bytes of a data file for reading; `-` is standard input, `.gz` is unpacked.

    A pipe is read where a user named it (`pipe`), and not where it was found in a folder. Raises DataError
    if the path is missing (names that are near are suggested), a folder or a device, or may not be read.
    Damage inside a `.gz` shows while reading: `gzip.BadGzipFile`, `EOFError` or `zlib.error`.
    """
    if path == "-":
        return standard_input()
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise DataError("must be a file, but is a folder; name a file in it", path)
        if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
            raise DataError(f"must be a regular file, but is {_kind(mode)}", path)
        # Opened once, for a pipe gives its bytes once; the caller closes it.
        return gzip.open(path) if path.endswith(".gz") else open(path, "rb")  # type: ignore[return-value]
    except (OSError, ValueError) as error:
        raise DataError(_why_not(error, path), path) from None


def standard_input() -> BinaryIO:
    """Raises DataError if it is closed, or a device without an end."""
    if sys.stdin is None:
        raise DataError("standard input must be open, but is closed; name a file", "-")
    stream = sys.stdin.buffer
    # a stream in memory has no number
    with suppress(OSError):
        opened = os.fstat(stream.fileno())
        is_empty = opened.st_rdev == os.stat(os.devnull).st_rdev
        if stat.S_ISCHR(opened.st_mode) and not (is_empty or stream.isatty()):
            raise DataError("must be a file, a pipe or a terminal, but is a device", "-")
    return stream


def regular(path: Path) -> Path:
    """The path of a file in a folder, which must lead to a regular file: a pipe would be waited for, and a
    device has no end.

    Every file that is no data is opened by way of this function. Symbolic links are followed, as in the cache
    of the hub. Raises FolderError if it is missing or anything else.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot be read ({_why_not(error, str(path))})", path) from None
    if not stat.S_ISREG(mode):
        raise FolderError(f"must be a regular file, but is {_kind(mode)}", path)
    return path


def open_regular(path: Path) -> BufferedReader:
    """A file for reading that is `regular`."""
    with reading(path):
        return open(regular(path), "rb")


def read_bytes(path: Path, limit: int = SMALL) -> bytes:
    """A file that is `regular`, whole. Raises FolderError also where it has more bytes than `limit`."""
    with reading(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FolderError(f"must be at most {limit} bytes, but has {size}", path)
        return file.read(size)


def read_text(path: Path, limit: int = SMALL) -> str:
    """A text in UTF-8 with `\n` at line ends, read as `read_bytes` does."""
    try:
        text = read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        message = f"must be UTF-8, but byte {error.start} is not; get the file again"
        raise FolderError(message, path) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_there(path: Path) -> bool:
    """Whether a name is taken, by whatever it may be: a link that leads nowhere is there, and an error where
    it is opened."""
    return os.path.lexists(path)


def require_folder(
    folder: Path, what: str, marker: str, hint: str = "", missing_hint: str = ""
) -> None:
    """Raises FolderError if this is no folder that holds the file `marker`, with which it is `what`.
    `hint`: what to do where the file is missing, `missing_hint` where the folder is."""
    if is_there(folder / marker):
        regular(folder / marker)
        return
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"must be {what}, but {_why_not(error, str(folder), 'folder')}{missing_hint}", folder
        ) from None
    problem = f"holds no {marker}" if is_folder else "is no folder"
    raise FolderError(f"must be {what}, but {problem}{hint}", folder)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the failure to read `path` into a FolderError."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot be read ({_why_not(error, str(path))})", path) from None


def _kind(mode: int) -> str:
    """What it is that is no regular file."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "none")


def _why_not(error: OSError | ValueError, path: str, kind: str = "file") -> str:
    if isinstance(error, ValueError):
        # a path with a NUL
        return f"no {kind} can have this name"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        folder, name = os.path.split(path.rstrip("/"))
        if os.path.islink(path):
            return f"there is no such {kind}: it is a link to {printable(os.readlink(path))}"
        try:
            near = difflib.get_close_matches(name, os.listdir(folder or "."), n=3, cutoff=0.6)
        except OSError:
            return f"there is no such {kind}, nor its folder"
        hint = f"; near it: {', '.join(printable(n) for n in near)}" if near else ""
        return f"there is no such {kind}{hint}"
    if error.errno == errno.EACCES:
        return "may not be read (permission denied)"
    if error.errno == errno.ELOOP:
        return "is a loop of symbolic links"
    return f"cannot be opened ({error.strerror})"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the failure to write `path` into a FolderError that tells how much room is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            there = os.path.isdir(path.parent)
            reason = (
                "there is no such folder"
                if error.errno == errno.ENOENT and not there
                else error.strerror or str(error)
            )
            before = "; what was there before is whole" if there else ""
            raise FolderError(
                f"{printable(str(path))}: cannot be written ({reason}){before}"
            ) from None
        raise FolderError(_no_room(path, error)) from None


def _no_room(path: Path, error: OSError) -> str:
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free if place.exists() else 0
    return (
        f"{printable(str(path))}: cannot be written ({error.strerror}; {free / 2**20:.1f} MiB are free); "
        "what was there before is whole; free some room and resume"
    )


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is written beside its place, flushed to the disk and renamed at the end: seen whole or not
    at all. Raises FolderError if the disk is full or read-only."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            flush_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, write: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Writes a file as `atomic_file` does; `write` is its content or a function that writes it."""
    with atomic_file(path) as file:
        match write:
            case str():
                file.write(write.encode())
            case bytes():
                file.write(write)
            case _:
                write(file)


def write_json(path: Path, content: object) -> None:
    write_atomic(path, _json(content, indent=2) + "\n")


def json_line(content: object) -> str:
    """One line of JSON; a number that is not finite (a perplexity beyond a float) is null."""
    return _json(finite_or_null(content))


def _json(content: object, indent: int | None = None) -> str:
    """JSON that has an encoding in UTF-8: a byte of a path that is none is written as an escape."""
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()


def write_json_lines(path: Path, records: Iterable[object]) -> None:
    """One line of JSON for each record, as `json_line` writes it."""
    write_atomic(path, "".join(json_line(record) + "\n" for record in records))


def finite_or_null(content: object) -> object:
    """The content with null for each number that is not finite, which JSON has no word for."""
    match content:
        case dict():
            return {key: finite_or_null(value) for key, value in content.items()}
        case list() | tuple():
            return [finite_or_null(value) for value in content]
        case float() if not math.isfinite(content):
            return None
    return content


def read_json(path: Path, limit: int = SMALL) -> Any:
    """A JSON file that a program wrote. Raises FolderError if it is missing, too large or not JSON, as NaN
    and 1e999 are not."""
    return parse_json(read_bytes(path, limit), path)


def parse_json(content: bytes, path: Path) -> Any:
    """The value of the JSON in a file. Raises FolderError as `read_json` does."""
    try:
        return json.loads(
            content,
            object_pairs_hook=_unique_keys,
            parse_constant=_number,
            parse_float=_number,
        )
    except (ValueError, RecursionError) as error:
        raise FolderError(f"is not JSON as it must be ({error})", path) from None


def read_json_object(path: Path, limit: int = SMALL) -> dict[str, object]:
    """A JSON file that holds an object. Raises FolderError as `read_json` does, and for anything else."""
    content = read_json(path, limit)
    fields = as_object(content)
    if fields is None:
        raise FolderError(
            f"must be a JSON object, but is {type(content).__name__}; get the file again", path
        )
    return fields


def _number(written: str) -> float:
    if not math.isfinite(number := float(written)):
        raise ValueError(f"a number must be finite, but one is {written[:20]}")
    return number


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(name)!r} stands twice")
    return content


def flush_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_file(path: Path) -> None:
    with open_regular(path) as file:
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Removes what has this name, if anything: a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_atomic(source: Path, path: Path) -> None:
    """Makes `path` another name of the file `source`, atomically; a copy where there are no links."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        temporary.unlink(missing_ok=True)
        try:
            try:
                os.link(source, temporary)
            except OSError:
                shutil.copyfile(source, temporary)
                flush_file(temporary)
            os.replace(temporary, path)
            flush_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with reading(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[bool]:
    """Holds the lock file `path`, and gives whether it does: false where another process holds it and we
    shall not wait.

    The lock goes with its process, however that ends. Where the file system has no locks, everyone holds it.
    Raises FolderError if the file cannot be made.
    """
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        held = True
        try:
            operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.flock(handle, operation)
        except BlockingIOError:
            held = False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        yield held
    finally:
        os.close(handle)


def leftovers(folder: Path) -> list[Path]:
    """What a killed `write_atomic` or `link_atomic` left in a folder: never seen, never wanted again."""
    return [path for path in folder.glob(".*.tmp") if path.is_file()]


def holds_something(path: Path) -> bool:
    """Whether a folder is taken: it is there and holds more than a lock and leftovers, or is no folder."""
    return path.exists() and (
        not path.is_dir() or bool(set(path.iterdir()) - {path / LOCK, *leftovers(path)})
    )


@contextmanager
def atomic_folder(path: Path, what: str, hint: str = "name another folder") -> Iterator[Path]:
    """A folder that is written beside its place, flushed to the disk and renamed at the end: seen whole or
    not at all. A command that was killed is given again, and clears what it left.

    Raises UsageError if `path` holds something, FolderError if another process is writing it.
    """
    check_new(path, what, hint)
    target = path.resolve()
    if target == Path.cwd() or os.path.ismount(target):
        raise UsageError(
            f"{printable(str(path))}: the folder for {what} is put in its place as a whole, so it must be"
            f" neither the current folder nor a mount point; {hint}"
        )
    temporary = target.with_name(f".{target.name}.tmp")
    with writing(path):
        temporary.mkdir(parents=True, exist_ok=True)
    with locked(temporary / LOCK) as held:
        if not held:
            raise FolderError(
                f"{printable(str(path))}: another process is writing this folder; wait for it or stop it"
            )
        try:
            for left in set(temporary.iterdir()) - {temporary / LOCK}:
                remove(left)
            yield temporary
            with writing(path):
                _put_in_place(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        (target / LOCK).unlink(missing_ok=True)


def _put_in_place(temporary: Path, target: Path) -> None:
    for path in temporary.rglob("*"):
        if path.is_dir():
            flush_folder(path)
        else:
            flush_file(path)
    flush_folder(temporary)
    if target.is_dir():
        # a lock and leftovers are all that it may hold
        for path in (target / LOCK, *leftovers(target)):
            path.unlink(missing_ok=True)
    os.rename(temporary, target)
    flush_folder(target.parent)


def check_new(path: Path, what: str, hint: str) -> None:
    """Raises UsageError if a folder is to be made that holds something already (but for a lock and
    leftovers)."""
    require_unicode(path)
    if holds_something(path):
        raise UsageError(
            f"{printable(str(path))}: the folder for {what} must be new or empty, but it holds something;"
            f" {hint}"
        )


def require_unicode(path: Path) -> None:
    """Raises UsageError for a path that safetensors cannot open."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{printable(str(path))}: the path of a model must be UTF-8, but is not; rename it"
        ) from None


def new_folder(path: Path, what: str, hint: str = "name another folder") -> None:
    """Creates a folder that must not hold anything yet (but for a lock and leftovers). Raises UsageError
    if it does; `hint` says what to do then."""
    check_new(path, what, hint)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
