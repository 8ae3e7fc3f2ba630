"""Pictures: every word and every cell is there, nothing in the data can break out, and errors are one
line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import numpy
import pytest
import torch

from seqloom.errors import FolderError, MissingExtraError, UsageError
from seqloom.explaining.charts import LINES, MOST_SERIES, REFERENCE, line_chart, save_chart
from seqloom.explaining.heat_maps import MOST_WORDS, attention_heat_map

EVIL = ["</script><script>", "<!--", "\"'];a", "a & b", "\\", "</text>"]


def even(rows: int, columns: int) -> list[list[float]]:
    return [[1 / columns] * columns for _ in range(rows)]


def svg_of(chart: Any, folder: Path) -> tuple[str, list[str]]:
    """The SVG and its texts (of a text in several lines each line), read back by an XML parser."""
    path = folder / "picture.svg"
    save_chart(chart, path)
    content = path.read_text(encoding="utf-8")
    return content, [
        line.text or "" for text in nodes(content, "text") for line in list(text) or [text]
    ]


def nodes(svg: str, kind: str) -> list[Element]:
    return list(fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{kind}"))


def fills(svg: str) -> list[str]:
    """The colours of the cells of a heat map as one reads them; cells are the only marks with a white line
    around."""
    cells = [node for node in nodes(svg, "path") if node.get("stroke") == "white"]
    return [
        cell.get("fill", "")
        for cell in sorted(cells, key=lambda cell: place(cell.get("d", ""))[::-1])
    ]


def place(drawn: str) -> list[float]:
    """(x, y) of `M34,0h34...` or `translate(34,0)`."""
    return [float(number) for number in re.findall(r"-?[\d.]+", drawn)[:2]]


def along(svg: str, side: int, words: set[str]) -> list[str]:
    """Labels as they come along the top (0) or the side (1)."""
    labels = [node for node in nodes(svg, "text") if node.text in words]
    return [
        label.text or ""
        for label in sorted(labels, key=lambda label: place(label.get("transform", ""))[side])
    ]


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def test_png_is_twice_the_cells_and_grows_with_the_words(tmp_path: Path) -> None:
    sizes = []
    for columns, rows in ((3, 2), (20, 2), (20, 15)):
        save_chart(
            attention_heat_map(even(rows, columns), ["w"] * columns, ["v"] * rows),
            tmp_path / "a.png",
        )
        sizes.append(png_size(tmp_path / "a.png"))
    assert sizes[1][0] - sizes[0][0] == pytest.approx(2 * 34 * 17, abs=8)
    # of two words the legend is higher
    assert sizes[2][1] - sizes[1][1] == pytest.approx(2 * (34 * 15 - 110), abs=60)


def test_cells_shrink_for_long_sentences() -> None:
    widths = {
        n: attention_heat_map(even(1, n), ["w"] * n, ["v"]).to_dict()["width"] / n
        for n in (1, 5, 22, 40, 60, MOST_WORDS)
    }
    assert widths == {1: 34, 5: 34, 22: 34, 40: 19, 60: 13, MOST_WORDS: 13}


def test_repeated_words_keep_their_cells_in_reading_order(tmp_path: Path) -> None:
    weights = numpy.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.5]])
    svg, _ = svg_of(
        attention_heat_map(weights, ["the", "zebra", "the", "ant"], ["b", "a", "b"]), tmp_path
    )
    assert along(svg, 0, {"the", "zebra", "ant"}) == ["the", "zebra", "the", "ant"]
    assert along(svg, 1, {"a", "b"}) == ["b", "a", "b"]
    colours = fills(svg)
    assert len(colours) == 12
    dark, light, middle = colours[0], colours[1], colours[11]
    assert len({dark, light, middle}) == 3
    assert colours == [
        dark,
        light,
        light,
        light,
        light,
        light,
        dark,
        light,
        light,
        light,
        light,
        middle,
    ]


@pytest.mark.parametrize(
    "weights",
    [torch.full((2, 3), 0.25), numpy.full((2, 3), 0.25, dtype=numpy.float32), [[0.25] * 3] * 2],
)
def test_every_kind_of_weights(weights: Any) -> None:
    rows = next(
        iter(
            attention_heat_map(weights, ["a", "b", "c"], ["d", "e"]).to_dict()["datasets"].values()
        )
    )
    assert [row["weight"] for row in rows] == [[0.25] * 3] * 2


def test_colours_span_0_to_1_or_less() -> None:
    def scale(**options: float) -> tuple[list[float], str]:
        colour = attention_heat_map([[0.1, 0.2]], ["a", "b"], ["c"], **options).to_dict()[  # type: ignore[arg-type]
            "encoding"
        ]["color"]
        assert colour["legend"]["values"][-1] == colour["scale"]["domain"][1]
        return colour["scale"]["domain"], colour["legend"]["title"]

    assert scale() == ([0, 1], "weight")
    assert scale(highest=0.2) == ([0, 0.2], "weight")


def test_equal_steps_of_weight_are_equal_steps_of_lightness(tmp_path: Path) -> None:
    svg, _ = svg_of(attention_heat_map([[0, 0.25, 0.5, 0.75, 1]], list("abcde"), ["f"]), tmp_path)
    lightness = [cielab_lightness(colour) for colour in fills(svg)]
    assert numpy.diff(lightness) == pytest.approx([-18.6] * 4, abs=1.5)


def cielab_lightness(colour: str) -> float:
    """Of `rgb(1, 2, 3)`, in 0..100."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return float(116 * numpy.cbrt(0.2126 * red + 0.7152 * green + 0.0722 * blue) - 16)


def shown(words: list[str], pieces: bool = False) -> list[str]:
    axis = attention_heat_map(even(1, len(words)), words, ["t"], pieces=pieces).to_dict()[
        "encoding"
    ]["x"]["axis"]
    labels: list[str] = json.loads(axis["labelExpr"].removesuffix("[datum.value]"))
    return labels


def test_what_cannot_be_seen_is_made_visible() -> None:
    given = ["", " ", " x ", "a\nb", "\u202eabc", "\u0301", "\ud800", "\u00a0"]
    assert shown(given) == [
        "(empty)",
        "˽",
        "˽x˽",
        "a\\nb",
        "\\u202eabc",
        "◌\u0301",
        "\\ud800",
        "\\xa0",
    ]


def test_long_words_are_cut() -> None:
    assert shown(["Donaudampfschifffahrtsgesellschaft", "Donaudampfschifffahr"]) == [
        "Donaudampfschifffah…",
        "Donaudampfschifffahr",
    ]


def test_pieces_lose_their_blank_and_show_where_a_word_goes_on() -> None:
    given = [
        "<s>",
        "Ein",
        " Haus",
        "boot",
        ",",
        "▁das",
        "▁",
        " ",
        "e",
        "<unk>",
        "n",
        "</s>",
        "\u0301",
        " x\ufffd",
        "\ufffdy",
    ]
    expected = [
        "<s>",
        "Ein",
        "Haus",
        "·boot",
        ",",
        "das",
        "˽",
        "˽",
        "e",
        "<unk>",
        "n",
        "</s>",
        "◌\u0301",
        "x\ufffd",
        "·\ufffdy",
    ]
    assert shown(given, pieces=True) == expected
    assert shown([" Haus", "boot"]) == ["˽Haus", "boot"]


def test_labels_are_turned_where_they_need_it() -> None:
    def angle(words: list[str]) -> float:
        return float(
            attention_heat_map(even(1, len(words)), words, ["t"]).to_dict()["encoding"]["x"][
                "axis"
            ]["labelAngle"]
        )

    assert angle(["a", "b"]) == 0
    assert angle(["Menschen", "b"]) == -45
    assert angle(["Menschen"] * 60) == -90


def test_words_of_data_stay_text_in_svg(tmp_path: Path) -> None:
    svg, texts = svg_of(
        attention_heat_map(
            even(len(EVIL), len(EVIL)), EVIL, EVIL, title=EVIL[0], axes=("<s>", "&")
        ),
        tmp_path,
    )
    assert "<script" not in svg
    for word in EVIL:
        assert texts.count(word) >= 2
    assert {"<s>", "&"} < set(texts)


class Scripts(HTMLParser):
    """What a browser would run, and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)


def test_html_is_one_file_that_no_word_can_leave(tmp_path: Path) -> None:
    chart = attention_heat_map(
        even(1, len(EVIL)), EVIL, ["t"], title="</title><script>alert(1)</script>"
    )
    save_chart(chart, tmp_path / "a.html")
    page = Scripts((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert page.tags.count("script") == len(page.scripts) == 2
    assert page.loads == []
    spec, _ = json.JSONDecoder().raw_decode(page.scripts[1].removeprefix('vegaEmbed("#chart", '))
    assert spec == chart.to_dict()
    assert len(page.scripts[0]) > 100_000  # the library itself


def test_json_is_the_description(tmp_path: Path) -> None:
    chart = line_chart({"a": [(1, 2)]}, x="x", y="y")
    save_chart(chart, tmp_path / "a.JSON")
    assert json.loads((tmp_path / "a.JSON").read_text(encoding="utf-8")) == chart.to_dict()


def test_alphabets_are_drawn(tmp_path: Path) -> None:
    words = ["Übergrößen", "Ωραία", "Привет", "e\u0301te\u0301", "日本語", "שלום", "🙂"]
    chart = attention_heat_map(even(1, len(words)), words, ["t"])
    _, texts = svg_of(chart, tmp_path)
    assert set(words) < set(texts)
    save_chart(chart, tmp_path / "a.png")
    assert png_size(tmp_path / "a.png")[0] > 2 * 34 * len(words)


def test_title_is_wrapped_and_shown(tmp_path: Path) -> None:
    long = "a title that is far too long for such a little picture and goes on"
    svg, texts = svg_of(
        attention_heat_map([[1.0]], ["a"], ["b"], title=long, subtitle="layer 4"), tmp_path
    )
    assert {"layer 4", "source", "target", "weight"} < set(texts)
    width = float(re.findall(r'viewBox="0 0 (\S+) ', svg)[0])
    start = next(i for i, text in enumerate(texts) if text.startswith("a title"))
    assert " ".join(texts[start : start + 3]) == long
    assert width < 350


def paths(svg: str, attribute: str, value: str) -> int:
    return sum(node.get(attribute) == value for node in nodes(svg, "path"))


def test_lines_bands_and_points(tmp_path: Path) -> None:
    many = [(float(i), 1 + i / 7) for i in range(50)]
    chart = line_chart(
        {"with attention": [(3, 28.0), (8, 31.0), (20, 30.5)], "<without>": many},
        x="source length",
        y="BLEU",
        bands={"with attention": [(3, 27.0, 29.0), (8, 30.0, 32.0), (20, 29.0, 31.5)]},
    )
    svg, texts = svg_of(chart, tmp_path)
    assert {"source length", "BLEU", "with attention", "<without>"} < set(texts)
    assert paths(svg, "stroke-width", "2.2") == 2  # a line each
    assert paths(svg, "fill-opacity", "0.16") == 1
    dots = [
        row
        for rows in chart.to_dict()["datasets"].values()
        for row in rows
        if set(row) == {"series", "x", "y"}
    ]
    assert len(dots) == 3 + 50 + 3  # both lines, and dots for the short one


def x_axis(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    spec = line_chart({"a": points}, x="epoch", y="loss", log_y=True).to_dict()
    encoding = spec["layer"][0]["encoding"]
    assert encoding["y"]["scale"]["type"] == "log"
    axis: dict[str, Any] = encoding["x"]["axis"]
    return axis


def test_log_axis_and_whole_steps() -> None:
    assert x_axis([(1, 0.5), (2, 50.0)])["values"] == [1, 2]
    many = x_axis([(step, 1.0) for step in range(1, 40)])
    assert many["tickMinStep"] == 1
    assert "values" not in many
    assert not {"tickMinStep", "values"} & set(x_axis([(0.5, 1)]))


@pytest.mark.parametrize(
    ("weights", "source", "target", "message"),
    [
        (even(2, 3), ["a"] * 2, ["b"] * 3, r"must be \(3, 2\).*but are \(2, 3\); transpose"),
        (even(2, 3), ["a"] * 4, ["b"] * 2, r"must be \(2, 4\).*but are \(2, 3\)$"),
        ([[0.1], [0.2, 0.3]], ["a"] * 2, ["b"] * 2, "numpy cannot read them"),
        (torch.ones(1, 1, requires_grad=True), ["a"], ["b"], "numpy cannot read them"),
        (torch.ones(1, 1, dtype=torch.bfloat16), ["a"], ["b"], "numpy cannot read them"),
        ([[0.5, float("nan")]], ["a", "b"], ["c"], "the one at target 0, source 1 is nan"),
        ([[0.5], [-3.0]], ["a"], ["b", "c"], "the one at target 1, source 0 is -3"),
        ([], ["a"], [], "the target .* is 0 words"),
        ([[]], [], ["a"], "the source .* is 0 words"),
        ([[1.0]], ["a"] * (MOST_WORDS + 1), ["b"], f"the source .* is {MOST_WORDS + 1} words"),
        ([[1.0]], "a", ["b"], "the source .* is one string"),
    ],
)
def test_heat_map_refuses_in_one_line(weights: Any, source: Any, target: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        attention_heat_map(weights, source, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("series", "options", "message"),
    [
        ({}, {}, "has 0; "),
        ({str(i): [(1, 1)] for i in range(MOST_SERIES + 1)}, {}, f"has {MOST_SERIES + 1}; "),
        ({"a": []}, {}, "'a' has none"),
        ({"a\n": [(1, float("inf"))]}, {}, r"must be finite, but 'a\\+n' has 1, inf"),
        ({"a": [(1, 0.0)]}, {"log_y": True}, "above 0, but 'a' has 1, 0;"),
        ({"a": [(1, 1)]}, {"bands": {"b": [(1, 1, 2)]}}, "none named 'b'"),
        ({"a": [(1, 1)]}, {"bands": {"a": [(1, 3, 2)]}}, "low <= high, but 'a' has 1, 3, 2"),
    ],
)
def test_line_chart_refuses_in_one_line(series: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        line_chart(series, x="x", y="y", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.gif", "a", "png"])
def test_unknown_suffix_lists_the_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.png, \.svg, \.html, \.json"):
        save_chart(line_chart({"a": [(1, 1)]}, x="x", y="y"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_picture_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = line_chart({"a": [(1, 1)]}, x="x", y="y")
    with pytest.raises(FolderError, match="cannot be written"):
        save_chart(chart, tmp_path / "missing" / "a.json")
    save_chart(chart, tmp_path / "a.svg")
    before = (tmp_path / "a.svg").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seqloom.files.os.replace", full)
    with pytest.raises(FolderError, match="free"):
        save_chart(line_chart({"b": [(1, 1)]}, x="x", y="y"), tmp_path / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    assert (tmp_path / "a.svg").read_bytes() == before


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_missing_extra_names_the_command(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = line_chart({"a": [(1, 1)]}, x="x", y="y")
    monkeypatch.setitem(sys.modules, missing, None)
    for draw in (
        lambda: attention_heat_map([[1.0]], ["a"], ["b"]),
        lambda: line_chart({"a": [(1, 1)]}, x="x", y="y"),
        lambda: save_chart(chart, tmp_path / "a.svg"),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'seqloom\[plot\]'"):
            draw()


def test_import_loads_no_drawing_library() -> None:
    code = (
        "import sys, seqloom.explaining.charts; print([m for m in ('altair', 'vl_convert', 'torch') if m in"
        " sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )


def test_what_is_no_model_is_dashed_and_grey_and_every_chart_has_a_title(tmp_path: Path) -> None:
    lines = {"chance": [(1.0, 0.1), (2.0, 0.1)], "lstm": [(1.0, 0.9), (2.0, 0.795)]}
    chart = line_chart(lines, x="distance", y="accuracy", references=("chance",))
    save_chart(chart, tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text("utf-8")
    assert ">accuracy by distance<" in svg
    assert 'stroke-dasharray="5,4"' in svg
    assert svg.count(REFERENCE) >= 2
    assert svg.count(LINES[0]) >= 2
    assert LINES[1] not in svg
