"""A published ELMo beside the outputs that are known of it, from text; then written, and read again.

    python -m tests.campaigns.elmo_fixture DIR

DIR is the folder test_fixtures/elmo of allenai/allennlp: options.json, lm_weights.hdf5, sentences.json,
lm_embeddings_{0,1,2}.hdf5 (the last layer, of three rows whose states are carried on), vocab_test.txt and
elmo_token_embeddings.hdf5. It prints one line of JSON: the largest differences, and whether the weights that
were written are the same to the bit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from seqloom.interop.elmo_files import elmo_files, read_elmo, write_elmo
from seqloom.models.elmo import Elmo
from seqloom.text.word_characters import TokenSpelling


def batch(rows: list[list[str]], longest: int) -> tuple[Tensor, Tensor]:
    """tokens `(rows, steps)`, all unknown, and characters `(rows, steps, letters)`; -1 at padding."""
    steps = max(map(len, rows))
    tokens = torch.full((len(rows), steps), -1)
    characters = torch.full((len(rows), steps, longest), -1)
    for row, words in enumerate(rows):
        tokens[row, : len(words)] = 3
        for step, word in enumerate(words):
            letters = list(word.encode()[:longest])
            characters[row, step, : len(letters)] = torch.tensor(letters)
    return tokens, characters


def word_difference(model: Elmo, folder: Path) -> float:
    """Of the character encoder, over the words of the vocabulary."""
    words = (folder / "vocab_test.txt").read_text("utf-8").split()
    tokens, characters = batch([words], model.config.longest_word)
    tokens[0] = torch.tensor([{"<S>": 1, "</S>": 2}.get(word, 3) for word in words])
    vectors = model.bilm.embed(tokens, characters, tokens >= 0)[0].numpy()
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        return float(np.abs(vectors - file["embedding"][...]).max())


def layer_difference(model: Elmo, folder: Path) -> float:
    """Of the last layer of both directions, over all sentences."""
    sentences: list[list[str]] = json.loads((folder / "sentences.json").read_text("utf-8"))
    expected = [h5py.File(folder / f"lm_embeddings_{row}.hdf5") for row in range(len(sentences))]
    state, largest = None, 0.0
    for number, together in enumerate(zip(*sentences, strict=True)):
        rows = [sentence.split() for sentence in together]
        tokens, characters = batch(rows, model.config.longest_word)
        layers, state = model.layers_of_texts(tokens, characters, state)
        for row, words in enumerate(rows):
            forward, backward = expected[row][str(number)][...]
            found = layers[-1][row, : len(words)].numpy()
            both = np.concatenate([forward, backward], axis=-1)
            largest = max(largest, float(np.abs(found - both).max()))
    return largest


def same_bits(model: Elmo, tokenizer: Any, folder: Path, weights: Path) -> bool:
    """Whether what is written is what was read, and what is read of it is the same model."""
    with tempfile.TemporaryDirectory() as place:
        write_elmo(Path(place), model, tokenizer)
        again = elmo_files(Path(place))
        assert again is not None
        pairs: list[tuple[Any, Any]] = []
        with h5py.File(weights) as one, h5py.File(again.weights) as other:

            def compare(name: str, node: Any) -> None:
                if isinstance(node, h5py.Dataset):
                    pairs.append((node[...].tobytes(), other[name][...].tobytes()))

            one.visititems(compare)
        second, _ = read_elmo(again)
        tensors = second.state_dict()
        equal = [torch.equal(part, tensors[name]) for name, part in model.state_dict().items()]
        return all(a == b for a, b in pairs) and all(equal)


@torch.no_grad()
def main() -> None:
    folder = Path(sys.argv[1])
    found = elmo_files(folder)
    assert found is not None
    model, tokenizer = read_elmo(found)
    spelling = TokenSpelling(tokenizer, model.config.longest_word)
    report = {
        "parameters": sum(one.numel() for one in model.parameters()),
        "vocabulary": len(spelling.known),
        "words": word_difference(model, folder),
        "layers": layer_difference(model, folder),
        "same_bits": same_bits(model, tokenizer, folder, found.weights),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
