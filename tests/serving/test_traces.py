"""Numbers that are asked for bit by bit: attention of every head, and the tree of a beam search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import seqloom
from seqloom.serving.http_errors import RequestError
from seqloom.serving.traces import AttentionTrace, KeptTraces

TEXT = "a dog runs in the park and the cat sleeps at night"


def test_every_head_is_that_of_explain(client: httpx.Client, folders: dict[str, Path]) -> None:
    model: Any = seqloom.load(folders["org/small"], "cpu")
    expected = model.explain([TEXT], show="attention").numbers
    trace = client.post("/api/trace", json={"model": "org/small", "inputs": TEXT}).json()
    assert (trace["source"], trace["target"]) == (expected["source"], expected["target"])
    assert (trace["layers"], trace["heads"]) == (2, 2)
    size = len(trace["source"])
    place = f"/api/trace/{trace['id']}"
    assert len(client.get(f"{place}/heads").content) == 4 * 32 * 32
    for layer in range(2):
        for head in range(2):
            weights = torch.tensor(expected["weights"][layer][head])
            shown = client.get(f"{place}/attention/{layer}/{head}").content
            highest = trace["highest"][layer][head]
            shares = torch.frombuffer(bytearray(shown), dtype=torch.uint8).view(size, size) / 255
            assert (shares - (weights / highest).clamp(max=1)).abs().max() < 0.01
            row = client.get(f"{place}/attention/{layer}/{head}/7").json()["weights"]
            assert row == pytest.approx(weights[7].tolist(), abs=1e-3)


def test_attention_to_a_source(client: httpx.Client) -> None:
    for part, square in (("cross", False), ("encoder", True)):
        content = {"model": "pairs", "inputs": "a dog", "target": "zwei", "part": part}
        trace = client.post("/api/trace", json=content).json()
        assert trace["part"] == part
        assert (trace["source"] == trace["target"]) == square


@pytest.mark.parametrize(
    "place", ["heads", "attention/0/0", "attention/2/0", "attention/0/9/0", "attention/0/0/99999"]
)
def test_what_is_not_there_is_said(place: str, client: httpx.Client) -> None:
    trace = client.post("/api/trace", json={"model": "org/small", "inputs": "a dog"}).json()
    known = client.get(f"/api/trace/{trace['id']}/{place}").status_code
    assert known == (200 if place in ("heads", "attention/0/0") else 404)
    answer = client.get(f"/api/trace/{trace['id'][1:]}/{place}")
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "id"


def test_old_traces_make_room() -> None:
    """The one that was not looked at for the longest time leaves."""
    kept, weights = KeptTraces(3 * 2 * 400), torch.rand(1, 1, 20, 20)
    first, second, third = (kept.keep(AttentionTrace.of(weights)) for _ in range(3))
    kept.named(first)
    fourth = kept.keep(AttentionTrace.of(weights))
    for name in (first, third, fourth):
        kept.named(name)
    with pytest.raises(RequestError, match="no such trace"):
        kept.named(second)


@pytest.mark.parametrize("model", ["org/small", "pairs"])
def test_a_tree_is_the_search(model: str, client: httpx.Client, folders: dict[str, Path]) -> None:
    """Its leaves that ended are the outputs of the same search, and sums go down along its branches."""
    content = {"model": model, "inputs": "a dog", "beam": 3, "tokens": 12}
    found = client.post("/api/beams", json=content).json()
    opened: Any = seqloom.load(folders[model], "cpu")
    wishes: dict[str, Any] = {"strategy": "beam", "beam": 3, "n_best": 3, "max_length": 12}
    if model == "pairs":
        (expected,) = opened.n_best(["a dog"], None, **wishes)
    else:
        (expected,) = opened.generate(["a dog"], **wishes)
    assert [one["text"] for one in found["outputs"]] == [one.text for one in expected]
    nodes = found["nodes"]
    ended = {round(one["total"], 4) for one in nodes if one["fate"] in ("ends", "is cut")}
    assert {round(one["log_probability"], 4) for one in found["outputs"]} <= ended
    for node in nodes:
        parent = None if node["parent"] is None else nodes[node["parent"]]
        before = 0 if parent is None else parent["total"]
        assert node["total"] == pytest.approx(before + node["log_prob"], abs=1e-4)
        assert parent is None or (parent["step"], parent["fate"]) == (node["step"] - 1, "goes on")
    for step in range(1, max(node["step"] for node in nodes) + 1):
        fates = [node["fate"] for node in nodes if node["step"] == step]
        assert 0 < sum(fate != "falls" for fate in fates) <= 3
        assert fates.count("falls") >= 1
