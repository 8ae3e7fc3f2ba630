"""The recurrent layers beside torch.nn's, and beside the loops that a good user writes where torch has none.

    python -m benchmarks.recurrent [--parts training step memory] [--cells 'lstm*' mut1] [--sizes '8x128x*']
    [--rounds 5] [--write]

training: forward and backward, float32, 128 steps, input as wide as the state, gradient of the input
    included. step: one step of
one sequence without gradients. memory: of a training step. A size is rows x width x layers; `--cells` and
`--sizes` are patterns over the names that are shown. Prints tables; with --write puts them into
docs/benchmarks.md, and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import report
from benchmarks.measuring import Spread, geometric_mean, interleaved, sgemm_peak
from benchmarks.recurrent_cases import (
    CASES,
    LAYERS,
    OURS,
    ROWS,
    SIZES,
    STEPS,
    WIDTHS,
    Case,
    Size,
    batches_of,
    flops,
    layers_of,
    training_step,
    ways_of,
)
from benchmarks.recurrent_memory import peak_memory
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.layers.recurrent.torch_modules import to_torch

TorchCell = type[nn.LSTMCell | nn.GRUCell]
STEP_CELLS: dict[str, tuple[str, TorchCell]] = {
    "lstm": ("LSTM", nn.LSTMCell),
    "gru-torch": ("GRU as in torch", nn.GRUCell),
}
TRAINING = f"""\
Training step: forward and backward over {STEPS} steps (captions: as many as they have), float32,
gradient of the input
included. Times the speed of the peer ± half the range of the rounds (share of the sgemm peak)."""
MEMORY_CASES = ("lstm",)
MEMORY_NOISE = 0.02
"""Share by which the memory of the same step differs from process to process."""


class Point(NamedTuple):
    """A training step of one size, beside one peer."""

    case: str
    peer: str
    size: str
    ratio: Spread
    """How many times as fast as the peer ours is."""
    ours_ms: float
    peer_ms: float
    tokens_per_second: float
    """True tokens, ours."""
    of_peak: float
    """Ours: operations of its matrix products, as a share of what sgemm does."""
    sgemm_gflops: float
    waited: float


def measure_training(case: Case, size: Size, rounds: int, peak: float) -> list[Point]:
    """A point for each peer."""
    layers = layers_of(case, size)
    batches = batches_of(case, size, layers)
    tokens = sum(batch.tokens for batch in batches)
    timing = interleaved(
        {name: training_step(way, batches) for name, way in ways_of(case, layers).items()},
        rounds=rounds,
    )
    seconds = timing.median(OURS)
    points = [
        Point(
            case=case.name,
            peer=peer,
            size=str(size),
            ratio=timing.ratio(OURS, peer),
            ours_ms=1e3 * seconds,
            peer_ms=1e3 * timing.median(peer),
            tokens_per_second=tokens / seconds,
            of_peak=flops(layers, tokens) / seconds / peak,
            sgemm_gflops=peak / 1e9,
            waited=timing.waited,
        )
        for peer in case.peers
    ]
    for one in points:
        times = (
            f"{one.ours_ms:8.1f} and {one.peer_ms:8.1f} ms  {one.of_peak:4.0%} of peak  waited"
            f" {one.waited:4.0%}"
        )
        note(
            f"{one.case:18} {one.size:9} {one.peer:15} {one.ratio.median:5.2f} [{one.ratio.low:.2f}"
            f" {one.ratio.high:.2f}]  {times}"
        )
    return points


def training(cases: Sequence[Case], sizes: Sequence[Size], rounds: int) -> tuple[list[Point], str]:
    """The points, and their tables."""
    points: list[Point] = []
    for case in cases:
        peak = sgemm_peak()
        for size in sizes:
            points += measure_training(case, size, rounds, peak)
    rows = [(case, peer) for case in cases for peer in case.peers]
    found = {(point.case, point.peer, point.size): point for point in points}
    text = [TRAINING]
    for layers in LAYERS:
        columns = [
            Size(batch, width, layers)
            for batch in ROWS
            for width in WIDTHS
            if Size(batch, width, layers) in sizes
        ]
        body = [
            [*naming(case, peer), *(shown(found[case.name, peer, str(size)]) for size in columns)]
            for case, peer in rows
        ]
        if columns:
            text.append(f"{('One layer', 'Two layers')[layers - 1]}, batch x width:")
            text.append(
                report.table(
                    [
                        "layer",
                        "lengths",
                        "peer",
                        *(f"{size.rows} x {size.width}" for size in columns),
                    ],
                    body,
                )
            )
    text.append(summary(rows, points))
    return points, "\n\n".join(text)


def naming(case: Case, peer: str) -> list[str]:
    return [case.title, case.lengths, peer]


def shown(point: Point) -> str:
    return f"{point.ratio.median:.2f} ± {point.ratio.half_range:.2f} ({point.of_peak:.0%})"


def summary(rows: Sequence[tuple[Case, str]], points: Sequence[Point]) -> str:
    """Worst point and geometric mean of each case, beside what is required."""
    body = []
    for case, peer in rows:
        ratios = {
            point.size: point.ratio.median
            for point in points
            if (point.case, point.peer) == (case.name, peer)
        }
        worst, mean = min(ratios, key=ratios.__getitem__), geometric_mean(list(ratios.values()))
        asked = peer == next(iter(case.peers))
        passes = ratios[worst] >= case.worst and mean >= (case.mean or 0.0)
        needed = (
            [f"{case.worst:.2f}", f"{case.mean:.2f}" if case.mean else ""] if asked else ["", ""]
        )
        verdict = ("yes" if passes else "no") if asked else ""
        body.append(
            [
                *naming(case, peer),
                f"{ratios[worst]:.2f} ({worst})",
                needed[0],
                f"{mean:.2f}",
                needed[1],
                verdict,
            ]
        )
    return report.table(
        [
            "layer",
            "lengths",
            "peer",
            "worst (at)",
            "required",
            "geometric mean",
            "required",
            "passes",
        ],
        body,
    )


def single_step(layers: RecurrentStack) -> Callable[[], None]:
    """The next step of one sequence, again and again."""
    (layer,) = layers.stack
    inputs, state = torch.randn(1, layers.config.input_width), layer.start(1)

    @torch.no_grad()
    def run() -> None:
        nonlocal state
        state = layer.step_from_input(inputs, state)

    return run


def torch_step(layers: RecurrentStack, kind: TorchCell) -> Callable[[], None]:
    """The same with torch's cell of the same weights."""
    cell = kind(layers.config.input_width, layers.config.width)
    cell.load_state_dict(
        {name.removesuffix("_l0"): weight for name, weight in to_torch(layers).state_dict().items()}
    )
    inputs = torch.randn(1, layers.config.input_width)
    state = cell(inputs)

    @torch.no_grad()
    def run() -> None:
        nonlocal state
        state = cell(inputs, state)

    return run


def step(
    cells: Sequence[str], widths: Sequence[int], rounds: int
) -> tuple[list[dict[str, Any]], str]:
    """Figures and table of inference step by step."""
    figures, body = [], []
    for name in cells:
        title, kind = STEP_CELLS[name]
        peer = f"torch.nn.{kind.__name__}"
        body.append([title, peer])
        for width in widths:
            layers = RecurrentStack(RecurrentStackConfig(name, width, width))
            timing = interleaved(
                {OURS: single_step(layers), peer: torch_step(layers, kind)}, rounds=rounds
            )
            ratio, microseconds = (
                timing.ratio(OURS, peer),
                {way: 1e6 * timing.median(way) for way in (OURS, peer)},
            )
            figures.append(
                {
                    "cell": name,
                    "peer": peer,
                    "width": width,
                    "ratio": ratio._asdict(),
                    "microseconds": microseconds,
                }
            )
            note(
                f"step {name:13} {width:9} {peer:15} {ratio.median:5.2f} [{ratio.low:.2f} {ratio.high:.2f}] "
                f" {microseconds[OURS]:.0f} µs"
            )
            body[-1].append(
                f"{ratio.median:.2f} ± {ratio.half_range:.2f} ({microseconds[OURS]:.0f} µs)"
            )
    text = (
        "One step of one sequence, no gradients."
        " Times the speed of the peer ± half the range (time of ours)."
    )
    return (
        figures,
        f"{text}\n\n{report.table(['layer', 'peer', *(f'width {width}' for width in widths)], body)}",
    )


def memory(cases: Sequence[Case], sizes: Sequence[Size]) -> tuple[list[dict[str, Any]], str]:
    """Figures and table of the memory of a training step."""
    figures, body = [], []
    for case in cases:
        for size in sizes:
            mebibytes = {way: peak_memory(case, way, size) for way in (OURS, *case.peers)}
            figures.append({"case": case.name, "size": str(size), "mebibytes": mebibytes})
            for peer in case.peers:
                ratio = mebibytes[OURS] / mebibytes[peer]
                note(
                    f"memory {case.name:11} {size!s:9} {peer:15} {ratio:5.2f}  {mebibytes[OURS]:.1f} and"
                    f" {mebibytes[peer]:.1f} MiB"
                )
                verdict = "yes" if ratio <= 1 + MEMORY_NOISE else "no"
                body.append(
                    [
                        case.title,
                        peer,
                        str(size),
                        f"{mebibytes[OURS]:.1f}",
                        f"{mebibytes[peer]:.1f}",
                        f"{ratio:.2f}",
                        verdict,
                    ]
                )
    text = (
        "Memory of a training step beyond weights and inputs, in MiB, at its peak; required is at most the"
        " peer's"
    )
    text += f" (± {MEMORY_NOISE:.0%}: repeats differ by that)."
    return (
        figures,
        f"{text}\n\n{report.table(['layer', 'beside', 'size', 'ours', 'peer', 'ratio', 'passes'], body)}",
    )


def note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["training", "step", "memory"],
        choices=["training", "step", "memory"],
    )
    parser.add_argument(
        "--cells",
        nargs="+",
        default=["*"],
        metavar="NAME",
        help=", ".join(case.name for case in CASES),
    )
    parser.add_argument(
        "--sizes", nargs="+", default=["*"], metavar="SIZE", help=", ".join(map(str, SIZES))
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    if arguments.write and any(
        getattr(arguments, name) != parser.get_default(name) for name in ("parts", "cells", "sizes")
    ):
        parser.error("--write publishes complete runs only: leave out --parts, --cells and --sizes")
    return arguments


def main() -> None:
    """Measures what was asked for."""
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    began = time.monotonic()
    cases = [
        case for case in CASES if any(fnmatch(case.name, pattern) for pattern in arguments.cells)
    ]
    sizes = [
        size for size in SIZES if any(fnmatch(str(size), pattern) for pattern in arguments.sizes)
    ]
    figures: dict[str, Any] = {}
    texts = []
    if "training" in arguments.parts and cases:
        points, text = training(cases, sizes, arguments.rounds)
        figures["training"] = [
            {**point._asdict(), "ratio": point.ratio._asdict()} for point in points
        ]
        texts.append(text)
    if "step" in arguments.parts:
        names, widths = (
            [case.name for case in cases if case.name in STEP_CELLS],
            sorted({size.width for size in sizes}),
        )
        figures["step"], text = step(names, widths, arguments.rounds)
        texts.append(text)
    if "memory" in arguments.parts:
        figures["memory"], text = memory(
            [case for case in cases if case.name in MEMORY_CASES], sizes
        )
        texts.append(text)
    took = f"`python -m benchmarks.recurrent`, {arguments.rounds} rounds, {time.monotonic() - began:.0f} s."
    if "training" in figures:
        waited = max(point["waited"] for point in figures["training"])
        took += (
            f" The most that a size waited for a core that others had: {waited:.0%} of its time."
        )
    texts.append(took)
    whole = "\n\n".join(texts)
    print(whole)
    if arguments.write:
        report.publish("recurrent", figures, f"## Recurrent layers\n\n{whole}")


if __name__ == "__main__":
    main()
