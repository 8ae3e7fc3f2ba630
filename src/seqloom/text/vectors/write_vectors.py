"""Word vectors as files that word2vec, GloVe, fastText and gensim read:

.txt, .vec   a line `words width`, then on each line a word and its numbers
.glove       the same without the first line
.bin         a line `words width`, then each word, a space, its numbers as little-endian float32, a newline
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

SUFFIXES = (".txt", ".vec", ".glove", ".bin")


def write_vectors(
    file: BinaryIO, suffix: str, words: Sequence[str], vectors: NDArray[np.float32]
) -> None:
    """vectors `(words, width)`, in the form of the ending of a file's name. Numbers are written so that
    reading them gives the same bits."""
    if suffix != ".glove":
        file.write(b"%d %d\n" % vectors.shape)
    for word, vector in zip(words, vectors, strict=True):
        if suffix == ".bin":
            numbers = vector.astype("<f4").tobytes()
        else:
            numbers = " ".join(map(str, vector)).encode()
        file.write(b"%b %b\n" % (word.encode(), numbers))
