"""What is timed beside each other does the same work."""

from __future__ import annotations

import pytest

from benchmarks import generation


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_texts_and_beams_agree_with_the_peer(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(generation, "NEW", 12)
    ours = generation.our_model()
    peer, read = generation.peer_model(ours), generation.prompts(batch)
    for way in ("greedy", "beam4"):
        texts = generation.our_run(ours, way, read)()
        assert [len(text) for text in texts] == [12] * batch
        assert texts == generation.peer_run(peer, way, read)()
    assert (
        generation.plain_run(peer, "greedy", read)() == generation.our_run(ours, "greedy", read)()
    )
    assert [len(text) for text in generation.our_run(ours, "sample", read)()] == [12] * batch
