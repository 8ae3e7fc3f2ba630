"""What `explain` returns, whatever it shows: a picture, its numbers, and lines for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from seqloom.explaining.charts import save_chart, svg_of

if TYPE_CHECKING:
    import altair as alt

Draw = Callable[[], "alt.Chart | alt.LayerChart | alt.VConcatChart"]


@final
@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A picture of what a model does, and its numbers. A notebook shows the picture."""

    show: str
    """Which picture it is: attention, attribution, ..."""
    numbers: Mapping[str, Any]
    """All that the picture shows, for programs."""
    text: Sequence[str]
    """The same in short, for people."""
    draw: Draw
    picture: Path | None = None
    """Where the picture was written; None if it was not."""

    def save(self, path: str | Path) -> Explanation:
        """Writes the picture to a file: .png, .svg, .html or .json (Vega-Lite)."""
        save_chart(self.draw(), Path(path))
        return replace(self, picture=Path(path))

    def summary(self) -> dict[str, object]:
        picture = {} if self.picture is None else {"picture": str(self.picture)}
        return {"show": self.show, **self.numbers, **picture}

    def lines(self) -> list[str]:
        """For people."""
        picture = [] if self.picture is None else [f"{self.show}: {self.picture}"]
        return [*self.text, *picture]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return svg_of(self.draw())
