"""Counts of requests and tokens, as Prometheus reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import final

from seqloom.serving.engine import Observed

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds to the first token."""


@final
class Metrics:
    """All counts since the start. Only the event loop writes them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """By route and status."""
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.aborted = 0
        self._first_token: Counter[int] = Counter()
        self._first_token_seconds = 0.0

    def first_token(self, seconds: float) -> None:
        self._first_token[bisect_left(BUCKETS, seconds)] += 1
        self._first_token_seconds += seconds

    def text(self, engines: Mapping[str, Observed]) -> str:
        """The content of /metrics."""
        lines = ["# TYPE seqloom_requests_total counter"]
        for (route, status), count in sorted(self.requests.items()):
            labels = f'route="{escaped(route)}",status="{status}"'
            lines.append(f"seqloom_requests_total{{{labels}}} {count}")
        lines += ["# TYPE seqloom_rows_running gauge", "# TYPE seqloom_requests_waiting gauge"]
        for name, engine in engines.items():
            label = f'model="{escaped(name)}"'
            lines.append(f"seqloom_rows_running{{{label}}} {engine.rows_running}")
            lines.append(f"seqloom_requests_waiting{{{label}}} {engine.waiting}")
        for name, value in (
            ("prompt_tokens", self.prompt_tokens),
            ("generated_tokens", self.generated_tokens),
            ("requests_aborted", self.aborted),
        ):
            lines += [f"# TYPE seqloom_{name}_total counter", f"seqloom_{name}_total {value}"]
        name = "seqloom_time_to_first_token_seconds"
        lines.append(f"# TYPE {name} histogram")
        counts = accumulate(self._first_token[number] for number in range(len(BUCKETS) + 1))
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
            lines.append(f'{name}_bucket{{le="{bound}"}} {count}')
        lines.append(f"{name}_sum {self._first_token_seconds:.6f}")
        lines.append(f"{name}_count {self._first_token.total()}")
        return "\n".join(lines) + "\n"


def escaped(label: str) -> str:
    """The value of a label."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
