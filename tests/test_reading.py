"""Every file is opened in one place, where it is known to be a regular one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.test_house import modules

OPENERS = {
    "open",
    "read_text",
    "read_bytes",
    "fromfile",
    "loadtxt",
    "memmap",
    "open_memmap",
    "safe_open",
    "load_file",
    "from_file",
    "ZipFile",
    "GzipFile",
    "ParquetFile",
    "SentencePieceProcessor",
    "spec_from_file_location",
    "np.load",
    "gzip.open",
    "json.load",
    "torch.load",
    "yaml.load",
}
"""Functions that open a file where they are given its path."""
REGULAR = {"regular", "open_regular", "open_binary"}
"""Functions of `seqloom.files` that give what may be opened, or is open."""
OPENED = {"file", "opened", "text", "memory"}
"""Names of files that are open, and of texts that were read."""
ALLOWED = {
    # the state of another process, which the system writes
    "training/heartbeat.py": {"/proc/"},
    # it opens a model, file by file
    "tasks/model.py": {"task.open"},
    # these read files of the package itself
    "models/sizes.py": {"read_text"},
    "serving/routes/page.py": {"read_bytes"},
    # files in a folder of its own, which it has just written
    "data/batching/cooccurrences.py": {"names", "path"},
    # processes of our own, which read what their parent writes
    "tasks/prompting/render_rows.py": {"sys.stdin"},
    "serving/render_chat.py": {"sys.stdin"},
    # it takes the bytes of a model
    "text/vocabulary_learning.py": {"SentencePieceProcessor"},
}


def name_of(function: ast.expr) -> str:
    """`open` for a function, `np.load` for one of a module, `.read_text` for a method of anything else."""
    match function:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
        case ast.Attribute(_, name):
            return f".{name}"
    return ""


def is_for_writing(call: ast.Call) -> bool:
    """Whether it is `open(path, "wb")` and the like; `os.open` has flags for that."""
    modes = [one.value for one in call.args[1:2] if isinstance(one, ast.Constant)]
    if name_of(call.func) == "os.open":
        return "O_WRONLY" in ast.unparse(call) or "O_RDWR" in ast.unparse(call)
    return any("w" in str(mode) for mode in modes)


def is_regular(argument: ast.expr) -> bool:
    """Whether an argument is a regular file's path, an open file, or a text."""
    match argument:
        case ast.Call(function, _, _):
            return name_of(function).rpartition(".")[2] in REGULAR
        case ast.Name(name):
            return name in OPENED
    return False


def bare_openings(source: str) -> list[str]:
    """The calls that open a path, whatever lies there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        opens = bool(OPENERS & {name, name.rpartition(".")[2]} - {"load"})
        through_files = name.startswith("files.") or name in ("read_text", "read_bytes")
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not opens or through_files or is_for_writing(node):
            continue
        if not any(map(is_regular, arguments)):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open()",
        "Path(place).read_text('utf-8')",
        "(folder / 'a').read_bytes()",
        "np.load(folder / 'a.npy')",
        "safe_open(path, framework='pt')",
        "json.load(path.open())",
        "zipfile.ZipFile(path)",
        "os.open(path, os.O_RDONLY)",
    ],
)
def test_a_bare_opening_is_found(source: str) -> None:
    assert bare_openings(source)


@pytest.mark.parametrize(
    "source",
    [
        "files.read_text(path)",
        "np.load(files.regular(path))",
        "open(path, 'wb')",
        "read_bytes(path)",
    ],
)
def test_an_opening_by_way_of_files_is_right(source: str) -> None:
    assert bare_openings(source) == []


def test_no_module_opens_a_file_that_may_be_a_pipe_or_a_device() -> None:
    bare = {
        path: found
        for path, source in modules().items()
        if path != "files.py"
        and not Path(path).is_relative_to("native")
        and (found := bare_openings(source))
    }
    for path, names in ALLOWED.items():
        found = bare.pop(path, [])
        unknown = [one for one in found if not any(name in one for name in names)]
        assert (unknown, bool(found)) == ([], True), path
    assert bare == {}
