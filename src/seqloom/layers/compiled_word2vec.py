"""The pass of `word2vec.py`, compiled where there is a library: `native/word2vec.h`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.word2vec import MASK, Pairs, PlainPass, SentenceWords, WindowSampling
from seqloom.native.library import KINDS, library

ROW = 64
"""Bytes of a vector register: rows are as long as a multiple of it."""


def padded_rows(rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros `(rows, width)` whose rows lie as the compiled pass needs them."""
    numbers = ROW // torch.finfo(dtype).bits * 8
    whole = fresh(torch.empty(0, dtype=dtype), rows, -(-width // numbers) * numbers)
    return whole.zero_()[:, :width]


def train_sentences(
    v: Tensor,
    u: Tensor,
    sentences: SentenceWords,
    options: WindowSampling,
    *,
    rate: float,
    seed: int,
    threads: int = 1,
    ordered: bool = False,
) -> Pairs:
    """One pass over the sentences; v, u `(vocabulary, width)`, which may be the same, are updated in place. v
    has more rows where words have pieces. A rate of 0 only measures.

    The windows are a function of the seed and the number of the sentence, the words from the noise of the
    seed and the thread's share. One thread always gives the same result; several write to the same vectors
    without waiting for each other (Recht et al. 2011), or, `ordered`, each to copies of its own, and what
    they have added is added up after every 256 words of each in the order of the threads.
    """
    compiled = library()
    if compiled is None or v.dtype not in KINDS or not v.is_cpu or options.softmax:
        return PlainPass(v, u, options, rate).over(sentences, seed)
    rows = [_aligned(matrix) for matrix in ((v,) if u is v else (v, u))]
    loss, count = np.zeros(threads), np.zeros(threads, np.int64)
    pieces, firsts = None, None
    if options.pieces:
        pieces, firsts = options.pieces.rows.ctypes.data, options.pieces.firsts.ctypes.data
    arguments = _Arguments(
        words=sentences.words.ctypes.data,
        sentences=sentences.starts.ctypes.data,
        v=rows[0].data_ptr(),
        u=rows[-1].data_ptr(),
        kept=options.kept.ctypes.data,
        noise=options.noise.ctypes.data,
        pieces=pieces,
        firsts=firsts,
        loss=loss.ctypes.data,
        pairs=count.ctypes.data,
        rate=rate,
        seed=seed & MASK,
        count=len(sentences.starts) - 1,
        vocabulary=len(options.noise),
        rows=len(rows[0]),
        stride=rows[0].stride(0),
        window=options.window,
        negatives=options.negatives,
        is_cbow=options.cbow,
        is_drawn=options.drawn_window,
        # nothing is updated with a rate of 0
        is_ordered=ordered and rate != 0,
    )
    compiled.by_type[v.dtype].word2vec(ctypes.byref(arguments), threads)
    for given, row in zip((v, u), rows, strict=False):
        if row is not given:
            given.copy_(row)
    return Pairs(float(loss.sum()), int(count.sum()))


class _Arguments(ctypes.Structure):
    """`Word2Vec` in `word2vec.h`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("words", "sentences", "v", "u")),
        *((name, ctypes.c_void_p) for name in ("kept", "noise", "pieces", "firsts")),
        *((name, ctypes.c_void_p) for name in ("loss", "pairs")),
        ("rate", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_long) for name in ("count", "vocabulary", "rows", "stride", "window")),
        *((name, ctypes.c_long) for name in ("negatives", "is_cbow", "is_drawn", "is_ordered")),
    ]


def _aligned(vectors: Tensor) -> Tensor:
    """The vectors themselves, or a copy whose rows lie as the compiled pass needs them."""
    bytes_of_row = vectors.stride(0) * vectors.element_size()
    if vectors.stride(1) == 1 and bytes_of_row % ROW == 0:
        return vectors
    rows, width = vectors.shape
    copy = padded_rows(rows, width, vectors.dtype)
    copy.copy_(vectors)
    return copy
