"""The files of a published ELMo: read, written, and refused where they are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.errors import FolderError, SeqloomError, UsageError
from seqloom.interop.elmo_files import elmo_files, read_elmo, their_tensors, write_elmo
from seqloom.models.elmo import Elmo
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer
from seqloom.workflows.exchange import export_model, import_model

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, PROJECTION = 6, 4
FILTERS = [[1, 2], [3, 4]]
MAPS = 6
OPTIONS: dict[str, Any] = {
    "lstm": {
        "cell_clip": 3,
        "use_skip_connections": True,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": PROJECTION,
        "dim": WIDTH,
    },
    "char_cnn": {
        "embedding": {"dim": 3},
        "filters": FILTERS,
        "n_highway": 1,
        "n_characters": 262,
        "max_characters_per_token": 50,
        "activation": "relu",
    },
}
SHAPES: dict[str, tuple[int, ...]] = {
    "char_embed": (261, 3),
    "CNN/W_cnn_0": (1, 1, 3, 2),
    "CNN/b_cnn_0": (2,),
    "CNN/W_cnn_1": (1, 3, 3, 4),
    "CNN/b_cnn_1": (4,),
    "CNN_high_0/W_transform": (MAPS, MAPS),
    "CNN_high_0/b_transform": (MAPS,),
    "CNN_high_0/W_carry": (MAPS, MAPS),
    "CNN_high_0/b_carry": (MAPS,),
    "CNN_proj/W_proj": (MAPS, PROJECTION),
    "CNN_proj/b_proj": (PROJECTION,),
    **{
        f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{name}": shape
        for direction in (0, 1)
        for layer in (0, 1)
        for name, shape in (
            ("W_0", (2 * PROJECTION, 4 * WIDTH)),
            ("B", (4 * WIDTH,)),
            ("W_P_0", (WIDTH, PROJECTION)),
        )
    },
}
"""As bilm-tf writes them."""
WORDS = ["<S>", "</S>", "<UNK>", "the", "dog", "runs"]


def drawn() -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(0, 0.5, shape).astype("f4") for name, shape in sorted(SHAPES.items())
    }


def write(folder: Path, options: Any = OPTIONS, words: list[str] | None = None) -> Path:
    (folder / "tiny_options.json").write_text(json.dumps(options))
    with h5py.File(folder / "tiny_weights.hdf5", "w") as file:
        for name, values in drawn().items():
            file.create_dataset(name, data=values)
    if words is not None:
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def read(folder: Path) -> tuple[Elmo, TextTokenizer]:
    found = elmo_files(folder)
    assert found is not None
    return read_elmo(found)


def test_the_weights_are_where_tensorflow_has_them(tmp_path: Path) -> None:
    """One step of the first layer, in the orders of TensorFlow's LSTMCell: i, j, f, o; a 1 added to f."""
    model, _ = read(write(tmp_path))
    theirs = drawn()
    place = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell"
    x = np.linspace(-1, 1, PROJECTION).astype("f4")
    sums = np.concatenate([x, np.zeros(PROJECTION, "f4")]) @ theirs[f"{place}/W_0"]
    i, j, _, o = np.split(sums + theirs[f"{place}/B"], 4)

    def sigma(value: Any) -> Any:
        return 1 / (1 + np.exp(-value))

    expected = (sigma(o) * np.tanh(sigma(i) * np.tanh(j))) @ theirs[f"{place}/W_P_0"]
    layers, _ = model.bilm.read(
        torch.from_numpy(x)[None, None], torch.ones(1, 1).bool(), None, backward=True
    )
    np.testing.assert_allclose(layers[1][0, 0].detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("words", [None, WORDS])
def test_what_is_read_and_written_again_is_the_same_to_the_bit(
    tmp_path: Path, words: list[str] | None
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", words=words)
    import_model(str(tmp_path / "in"), str(tmp_path / "run"))
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    with h5py.File(tmp_path / "out" / "weights.hdf5") as file:
        for name, values in drawn().items():
            assert file[name][...].tobytes() == values.tobytes()
        assert sum(isinstance(file[name], h5py.Group) for name in file) == 5
    options = json.loads((tmp_path / "out" / "options.json").read_text())
    assert options == OPTIONS | {"bidirectional": True}
    vocabulary = tmp_path / "out" / "vocabulary.txt"
    assert vocabulary.exists() == (words is not None)
    if words is not None:
        assert vocabulary.read_text().split() == words


def test_a_model_that_embeds_words_is_read_and_written_too(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["the dog runs the dog"], "whitespace", 100)
    from seqloom.models.elmo import ElmoConfig

    size = tokenizer.vocabulary_size
    model = Elmo(ElmoConfig(vocabulary_size=size, width=WIDTH, projection=PROJECTION)).eval()
    write_elmo(tmp_path, model, tokenizer)
    again, words = read(tmp_path)
    assert words.token_bytes == tokenizer.token_bytes
    kept = [1, 2, 3, *range(16, size)]
    for name, ours in their_tensors(model).items():
        theirs = their_tensors(again)[name]
        rows: Any = kept if name == "embedding" else slice(None)
        assert torch.equal(ours[rows], theirs[rows])


def test_pieces_have_no_place_in_the_files(tmp_path: Path) -> None:
    from seqloom.models.elmo import ElmoConfig

    tokenizer = train_tokenizer(["the dog runs"], "bytes")
    size = tokenizer.vocabulary_size
    model = Elmo(ElmoConfig(vocabulary_size=size, width=WIDTH, projection=PROJECTION))
    with pytest.raises(UsageError, match=r"data\.tokenizer=words"):
        write_elmo(tmp_path, model, tokenizer)


def changed(path: Path, name: str, values: Any, **options: Any) -> None:
    with h5py.File(path / "tiny_weights.hdf5", "a") as file:
        del file[name]
        if values is not None:
            file.create_dataset(name, data=values, **options)


def elsewhere(path: Path) -> None:
    """The numbers of another file."""
    with h5py.File(path / "other.hdf5", "w") as other:
        other["x"] = drawn()["char_embed"]
    with h5py.File(path / "tiny_weights.hdf5", "a") as file:
        del file["char_embed"]
        file["char_embed"] = h5py.ExternalLink(str(path / "other.hdf5"), "x")


def promised(path: Path) -> None:
    """Numbers that nobody wrote."""
    with h5py.File(path / "tiny_weights.hdf5", "a") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", shape=(261, 3), dtype="f4", chunks=(261, 3))


def truncated(path: Path) -> None:
    content = (path / "tiny_weights.hdf5").read_bytes()
    (path / "tiny_weights.hdf5").write_bytes(content[: len(content) // 2])


def optioned(**lstm: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = OPTIONS | {"lstm": {**OPTIONS["lstm"], **lstm}}
        (path / "tiny_options.json").write_text(json.dumps(content))

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "another shape": (
        lambda path: changed(path, "char_embed", np.zeros((262, 3), "f4")),
        "char_embed must be float32 of",
    ),
    "other numbers": (
        lambda path: changed(path, "char_embed", np.zeros((261, 3), "f8")),
        "char_embed must be float32 of",
    ),
    "missing": (lambda path: changed(path, "CNN/b_cnn_0", None), "must hold CNN/b_cnn_0"),
    "a group": (
        lambda path: group_in_place_of(path, "CNN/b_cnn_0"),
        "must hold CNN/b_cnn_0",
    ),
    "NaN": (
        lambda path: changed(path, "CNN/b_cnn_0", np.full(2, np.nan, "f4")),
        "CNN/b_cnn_0 must hold numbers",
    ),
    "compressed": (
        lambda path: changed(path, "char_embed", np.zeros((261, 3), "f4"), compression="gzip"),
        "neither compressed nor elsewhere",
    ),
    "in another file": (elsewhere, "must hold char_embed"),
    "promised": (promised, "neither compressed nor elsewhere"),
    "truncated": (truncated, "must be HDF5"),
    "larger than the file": (optioned(dim=10**9), "holds fewer numbers than the options say"),
    "of another size": (optioned(dim=7), "must be float32 of"),
    "no size": (optioned(dim=None), r"must say lstm\.dim"),
    "a text for a size": (optioned(dim="many"), "must be the options of an ELMo"),
    "no layer": (optioned(n_layers=0), "model.layers must be at least 1"),
    "not JSON": (
        lambda path: _put(path / "tiny_options.json", "{"),
        "is not JSON",
    ),
    "no options": (lambda path: _put(path / "tiny_options.json", "[]"), "must be a JSON object"),
    "two words in a line": (
        lambda path: _put(path / "vocab.txt", "<S>\n</S>\n<UNK>\na b\n"),
        "line 4 must be one word",
    ),
    "a word twice": (
        lambda path: _put(path / "vocab.txt", "<S>\n</S>\n<UNK>\na\na\n"),
        "each word must be there once",
    ),
}


def _put(path: Path, content: str) -> None:
    path.write_text(content)


def group_in_place_of(path: Path, name: str) -> None:
    with h5py.File(path / "tiny_weights.hdf5", "a") as file:
        del file[name]
        file.create_group(name)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    change, message = DAMAGE[damage]
    change(write(tmp_path))
    with pytest.raises(FolderError, match=message) as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 2000


def test_two_models_in_a_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "more_weights.hdf5").write_bytes(b"")
    with pytest.raises(UsageError, match="a folder of its own"):
        import_model(str(tmp_path), str(tmp_path / "run"))


def test_a_type_of_weights_belongs_to_others(tmp_path: Path) -> None:
    with pytest.raises(SeqloomError, match="--dtype belongs to"):
        import_model(str(write(tmp_path)), str(tmp_path / "run"), "bfloat16")
