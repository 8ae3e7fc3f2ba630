"""The campaigns of the server in a small form; they can be run at any size by hand."""

from __future__ import annotations

import random
from pathlib import Path

import httpx
from tests.campaigns import served_company, served_failures, served_texts
from tests.campaigns.served_hostile import mutated
from tests.serving.conftest import SMALL, write_random_run


def test_mutated_requests_are_answered_or_refused(client: httpx.Client) -> None:
    statuses = set()
    for seed in range(120):
        path, body = mutated(random.Random(seed))
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code < 500, (path, body, answer.text)
        statuses.add(answer.status_code)
    assert {200, 400} <= statuses


def test_streams_are_the_plain_texts_wherever_they_stop() -> None:
    seeds, stops, undecodable = served_texts.main(["--seeds=3", "--texts=1", "--undecodable=20000"])
    assert seeds["equal"] == 3
    assert stops["right"] == stops["stop_strings"] > 40
    assert undecodable["seconds"] < 12 * undecodable["seconds_of_a_quarter"] + 0.1


def test_an_answer_is_the_same_in_company() -> None:
    for report in served_company.main(
        ["--rounds=1", "--models", "text-recurrent-lm", "translation-t5"]
    ):
        assert report["equal"] == report["answers"] == 32
        assert report["distinct"] > 10


def test_a_client_that_leaves_frees_its_row_within_two_steps(tmp_path: Path) -> None:
    folder = write_random_run(tmp_path / "small", "text-generation", "gpt", **SMALL)
    report = served_failures.disconnects(folder, 4)
    assert max(report["steps_until_free"]) <= 2
