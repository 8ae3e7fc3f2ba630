"""Every task by the real client of Hugging Face: its answers are those of the model from Python."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from PIL import Image
from tests.serving.conftest import LIMITS, trained, write_random_run
from tests.tasks.explain.subjects import RUNS, SENTENCE

import seqloom
from seqloom.serving.server import serving
from seqloom.workflows.train import train

TAGGED = "".join(
    f"Anna{number}\tB-PER\nSmith\tI-PER\nsees\tO\nParis\tB-LOC\n.\tO\n\n" for number in range(12)
)
TEXTS = "".join(f"the dog number {number} sees a cat in the park\n" for number in range(20))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> run folder of a small model of that task."""
    place = tmp_path_factory.mktemp("tasks")
    pair: dict[str, Any] = {"width": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    labelled = "label\ttext\n"
    for number in range(12):
        labelled += f"good\ta fine film {number}\nbad\ta dull film {number}\n"
    entailed = "label\ttext\tsecond\n"
    for number in range(12):
        entailed += f"entailment\ta fine film {number}\tit is about a film\n"
        entailed += f"neutral\ta fine film {number}\tit is about music\n"
        entailed += f"contradiction\ta fine film {number}\tit is about a song\n"
    found = {
        "text-generation": write_random_run(
            place / "lm", "text-generation", "gpt", width=24, heads=2, layers=1, context=64
        ),
        "translation": write_random_run(place / "mt", "translation", "t5", **pair),
        "summarization": write_random_run(place / "sum", "summarization", "t5", **pair),
        "text2text-generation": write_random_run(
            place / "t2t", "text2text-generation", "t5", **pair
        ),
        "text-classification": trained(
            place / "labels", "text-classification", "bag_of_words:tiny", labelled
        ),
        "zero-shot-classification": trained(
            place / "entails", "text-classification", "bag_of_words:tiny", entailed
        ),
        "token-classification": trained(
            place / "tags", "token-classification", "recurrent:tiny", TAGGED
        ),
        "fill-mask": trained(
            place / "masks", "fill-mask", "bert:tiny", TEXTS, "train.batch_rows=8"
        ),
    }
    images = np.random.default_rng(0).integers(0, 255, (24, 8, 8)).astype(np.uint8)
    np.savez(place / "images.npz", images=images, labels=np.array(["left", "right"] * 12))
    train(
        "image-classification",
        [str(place / "images.npz")],
        output_dir=place / "images",
        model="vit:tiny",
        settings=["train.max_steps=2", "train.evaluate_every=2", "train.threads=1"],
    )
    return found | {
        "image-classification": place / "images",
        "question-answering": RUNS / "questions-bert",
    }


@pytest.fixture(scope="module")
def server(places: dict[str, Path]) -> Iterator[str]:
    named = [f"{name}={folder}" for name, folder in places.items()]
    with serving(*named, limits=LIMITS, device="cpu") as url:
        yield url


@pytest.fixture(autouse=True)
def a_client_that_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests forbid it the network, to which loopback counts."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def hub(server: str, task: str) -> InferenceClient:
    return InferenceClient(model=f"{server}/models/{task}")


def opened(places: dict[str, Path], task: str) -> Any:
    return seqloom.load(places[task], "cpu")


def test_text_classification(server: str, places: dict[str, Path]) -> None:
    found = hub(server, "text-classification").text_classification("a fine film")
    (expected,) = opened(places, "text-classification").predict(["a fine film"])
    assert {one.label: one.score for one in found} == pytest.approx(expected["probabilities"])
    (best,) = hub(server, "text-classification").text_classification("a fine film", top_k=1)
    assert best.label == expected["label"]


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_classification(multi_label: bool, server: str, places: dict[str, Path]) -> None:
    """By what the model says of each label in the place of {}."""
    given = ["film", "music", "a song"]
    found = hub(server, "zero-shot-classification").zero_shot_classification(
        "a fine film", given, multi_label=multi_label, hypothesis_template="it is about {}"
    )
    asked = [("a fine film", f"it is about {name}") for name in given]
    answers = opened(places, "zero-shot-classification").predict(asked)
    rows = [answer["probabilities"] for answer in answers]
    total = sum(row["entailment"] for row in rows)
    expected = {}
    for name, row in zip(given, rows, strict=True):
        against = row["entailment"] + row["contradiction"] if multi_label else total
        expected[name] = row["entailment"] / against
    assert {one.label: one.score for one in found} == pytest.approx(expected)
    assert [one.score for one in found] == sorted(expected.values(), reverse=True)
    (only,) = hub(server, "zero-shot-classification").zero_shot_classification("a film", ["film"])
    assert 0 < only.score < 1


def test_zero_shot_needs_a_model_that_knows_entailment(server: str) -> None:
    for candidates in (["a"], list[str]()):
        asked = {"inputs": "a film", "parameters": {"candidate_labels": candidates}}
        answer = httpx.post(f"{server}/models/text-classification", json=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "candidate_labels"


def test_token_classification(server: str, places: dict[str, Path]) -> None:
    text = "Anna1 Smith sees  Paris ."
    client = hub(server, "token-classification")
    found = client.token_classification(text, aggregation_strategy="none", ignore_labels=[])
    (expected,) = opened(places, "token-classification").predict([text])
    assert [one.entity for one in found] == expected["tags"]
    assert [text[one.start : one.end] for one in found] == text.split()
    for entity in client.token_classification(text, aggregation_strategy="simple"):
        assert entity.word == text[entity.start : entity.end]


def test_fill_mask(server: str, places: dict[str, Path]) -> None:
    text = "the <mask> sees a cat"
    found = hub(server, "fill-mask").fill_mask(text, top_k=3)
    (expected,) = opened(places, "fill-mask").fill_masks([text], 3)
    assert {one.token: one.score for one in found} == pytest.approx(
        {one.id: one.probability for one in expected.masks[0]}
    )
    assert all("<mask>" not in one.sequence for one in found)


def test_question_answering(server: str, places: dict[str, Path]) -> None:
    found = hub(server, "question-answering").question_answering(
        question="who sees the cat ?", context=SENTENCE
    )
    (expected,) = opened(places, "question-answering").predict([("who sees the cat ?", SENTENCE)])
    best: Any = found[0] if isinstance(found, list) else found
    assert best.answer == expected["answer"] == SENTENCE[best.start : best.end]
    assert best.score == pytest.approx(expected["answers"][0]["probability"])


def test_vectors(server: str, places: dict[str, Path]) -> None:
    """By three clients, of a model that fills masks."""
    texts = ["the dog sees a cat", "a park"]
    expected = opened(places, "fill-mask").vectors(texts)
    place = f"{server}/models/fill-mask/pipeline/"
    vectors = InferenceClient(model=f"{place}feature-extraction").feature_extraction(texts[0])
    np.testing.assert_allclose(vectors[0], expected[0], rtol=1e-5)
    unit = InferenceClient(model=f"{place}feature-extraction").feature_extraction(
        texts[0], normalize=True
    )
    assert np.linalg.norm(unit[0]) == pytest.approx(1, abs=1e-5)
    with openai.OpenAI(base_url=f"{server}/v1", api_key="unused") as client:
        answer = client.embeddings.create(model="fill-mask", input=texts)
    found = np.array([one.embedding for one in answer.data], np.float32)
    np.testing.assert_array_equal(found, expected)
    (alike,) = InferenceClient(model=f"{place}sentence-similarity").sentence_similarity(
        texts[0], other_sentences=[texts[0]]
    )
    assert alike == pytest.approx(1, abs=1e-5)


def test_translation_and_summarization(server: str, places: dict[str, Path]) -> None:
    text = "the cat sleeps at night"
    (expected,) = opened(places, "translation").predict([text])
    assert hub(server, "translation").translation(text).translation_text == expected
    (expected,) = opened(places, "summarization").predict([text], beam=1)
    found = hub(server, "summarization").summarization(text, generate_parameters={"num_beams": 1})
    assert found.summary_text == expected
    several = httpx.post(
        f"{server}/models/translation", json={"inputs": [text, "", "a dog"]}
    ).json()
    assert several[1] == {"translation_text": ""}
    assert [one["translation_text"] for one in several[::2]] == opened(
        places, "translation"
    ).predict([text, "a dog"])


def test_text2text_generation(server: str, places: dict[str, Path]) -> None:
    client, text = hub(server, "text2text-generation"), "the cat sleeps at night"
    model = opened(places, "text2text-generation")
    assert client.text_generation(text) == model.predict([text])[0]
    assert client.text_generation(text, max_new_tokens=5) == model.predict([text], max_length=5)[0]


def test_text_generation(server: str, places: dict[str, Path]) -> None:
    client = hub(server, "text-generation")
    ((expected,),) = opened(places, "text-generation").generate(
        ["a dog"], max_length=12, strategy="greedy"
    )
    assert client.text_generation("a dog", max_new_tokens=12) == expected.text
    answer: Any = client.text_generation("a dog", max_new_tokens=12, details=True, seed=4)
    ((expected,),) = opened(places, "text-generation").generate(
        ["a dog"], max_length=12, strategy="sample", seed=4
    )
    assert answer.generated_text == expected.text
    assert [token.id for token in answer.details.tokens] == expected.tokens
    assert answer.details.seed == 4


def test_image_classification(server: str, places: dict[str, Path], tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (8, 8)).astype(np.uint8)
    place = tmp_path / "image.png"
    Image.fromarray(pixels).save(place)
    (expected,) = opened(places, "image-classification").predict([str(place)])
    client = hub(server, "image-classification")
    for found in (
        client.image_classification(place),
        client.image_classification(place.read_bytes(), top_k=2),
    ):
        assert {one.label: one.score for one in found} == pytest.approx(expected.probabilities)
    for content in (b"no image", b"", io.BytesIO(place.read_bytes()).read()[:40]):
        answer = httpx.post(f"{server}/models/image-classification", content=content)
        assert answer.status_code == 400


def test_the_verbs_answer_as_from_python(server: str, places: dict[str, Path]) -> None:
    model = opened(places, "text-generation")
    asked = {"model": "text-generation", "texts": ["a dog", "the cat"], "tokens": True}
    scores = httpx.post(f"{server}/api/score", json=asked).json()["scores"]
    for found, one in zip(scores, model.score(["a dog", "the cat"], tokens=True), strict=True):
        assert found["log_probability"] == pytest.approx(one.log_probability, abs=1e-4)
        assert len(found["table"]) == len(one.table)
    asked = {"model": "text-generation", "prefix": "a do", "n": 3}
    completions = httpx.post(f"{server}/api/complete", json=asked).json()["completions"]
    assert [one["text"] for one in completions] == [one.text for one in model.complete("a do", 3)]
    asked = {
        "model": "text-generation",
        "prompts": ["a"],
        "decode": {"beam": 2, "n_best": 2, "max_length": 9},
    }
    texts = httpx.post(f"{server}/api/generate", json=asked).json()["texts"]
    (expected,) = model.generate(["a"], beam=2, n_best=2, max_length=9)
    assert [(one["text"], one["tokens"]) for one in texts] == [
        (one.text, one.tokens) for one in expected
    ]
    asked = {"model": "text-classification", "inputs": ["a fine film"]}
    answers = httpx.post(f"{server}/api/predict", json=asked).json()["answers"]
    assert answers[0]["label"] in ("good", "bad")
