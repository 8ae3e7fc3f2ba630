"""The real command under `torchrun`: two workers train what one does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqloom import bundles
from seqloom.data.synthetic import reverse_task
from seqloom.training.checkpoints import OPTIMIZER, WEIGHTS, checkpoints, read_state
from seqloom.workflows.train import train

SETTINGS = [
    "data.tokenizer=characters",
    "train.max_steps=9",
    "train.evaluate_every=4",
    "train.log_every=3",
    "train.batch_rows=8",
    "train.dtype=float64",
    "train.threads=1",
    "model.dropout=0.0",
    *(f"model.{name}=8" for name in ("width", "encoder_width", "embedding_width", "attention_width", "readout_width")),
]
"""33 pairs in batches of 8: the last batch of an epoch has one row, fewer than there are workers."""


@pytest.mark.slow
def test_two_workers_end_where_one_does(tmp_path: Path) -> None:
    for name, seed, count in (("train", 1, 33), ("validation", 2, 10)):
        for side, texts in zip("ab", zip(*reverse_task(seed, count), strict=True), strict=True):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))
    files = [[str(tmp_path / f"{name}.{side}") for side in "ab"] for name in ("train", "validation")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = ["-m", "seqloom", "train", "translation", *files[0], "--validation", *files[1], "--model", "seq2seq:tiny"]
    settings = [f"--set={setting}" for setting in SETTINGS]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    two, one = tmp_path / "two", tmp_path / "one"
    done = subprocess.run(
        [*torchrun, *command, "--output-dir", str(two), *settings], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"folder: {two}") == 1  # only the first worker speaks
    threads = torch.get_num_threads()
    train("translation", files[0], output_dir=one, model="seq2seq:tiny", validation=files[1], settings=SETTINGS)
    torch.set_num_threads(threads)
    assert [path.name for path in checkpoints(two)] == [path.name for path in checkpoints(one)]
    for name in (WEIGHTS, OPTIMIZER):
        mine, theirs = (load_file(checkpoints(folder)[0] / name) for folder in (one, two))
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert torch.allclose(mine[key], theirs[key], rtol=1e-9, atol=1e-12), key
    assert read_state(checkpoints(two)[0]).tokens == read_state(checkpoints(one)[0]).tokens
    for mine, theirs in zip(bundles.read_metrics(one), bundles.read_metrics(two), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine.keys() - {"tokens_per_second"}:
            assert theirs[key] == pytest.approx(mine[key], rel=1e-6)
    bundles.load_bundle(two)
