"""Encoders of `transformers` with a head on them, random and in odd shapes: the same scores here, and
back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.interop.headed import (
    CHECKPOINTS,
    TASKS,
    ask_theirs,
    asked,
    close,
    kind_of,
    reader,
    saved,
)
from torch import nn

from seqloom.errors import FolderError, UsageError
from seqloom.interop.checkpoint import read_checkpoint, read_family
from seqloom.interop.export import target_of, their_tensors, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_scores_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, batch = saved(name, tmp_path), asked(name)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        found = read_checkpoint(tmp_path, dtype)
        ours, expected = found.model(batch), ask_theirs(name, theirs.to(dtype), batch)
        true = batch.places >= 0 if batch.places.shape[1] else ...
        assert close(ours[true], expected[true], tolerance)
    assert found.model_type == "encoder_with_head"
    assert (found.config.kind, found.task) == (kind_of(name), TASKS[kind_of(name)])
    assert found.task == read_family(tmp_path)[2].task
    named = kind_of(name) in ("classification", "multi-label", "tagging")
    assert found.config.labels == (("z", "a", "m m") if named else ())
    assert found.notes == []


@torch.no_grad()
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_out_and_back_every_tensor_is_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "theirs")
    found = read_checkpoint(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    target = target_of(found.model_type, found.config, found.task, found.content)
    assert target.architecture == type(theirs).__name__
    write_checkpoint(tmp_path / "ours", found.model, found.config, target, origin=found.content)
    before, after = (
        load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, told = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told[key] for key in ("unexpected_keys", "missing_keys", "mismatched_keys"))
    assert close(
        ask_theirs(name, again.eval(), asked(name)), ask_theirs(name, theirs, asked(name)), 1e-6
    )
    if found.config.labels:
        assert again.config.id2label == theirs.config.id2label
        assert list(again.config.label2id.items()) == list(theirs.config.label2id.items())
    problems = {
        "classification": "single_label_classification",
        "multi-label": "multi_label_classification",
        "regression": "regression",
    }
    assert again.config.problem_type == problems.get(kind_of(name))
    if name == "bert-labels":
        assert (found.config.head.dropout, again.config.classifier_dropout) == (0.3, 0.3)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_without_its_origin_a_reader_is_written_as_one_that_opens_alike(
    name: str, tmp_path: Path
) -> None:
    saved(name, tmp_path / "theirs")
    found = read_checkpoint(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    target = target_of(found.model_type, found.config, found.task)
    ids = {key: value for key, value in found.content.items() if key.endswith("_token_id")}
    write_checkpoint(tmp_path / "ours", found.model, found.config, target, ids=ids)
    again = read_checkpoint(tmp_path / "ours")
    assert (again.config.kind, again.config.labels, again.task) == (
        found.config.kind,
        found.config.labels,
        found.task,
    )
    one, two = found.model.state_dict(), again.model.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


# --- what is refused
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "bert-labels",
            {"id2label": {"0": "a", "1": "b", "2": "a"}},
            "labels must differ, but id2label has a twice",
        ),
        (
            "bert-labels",
            {"id2label": {"0": "a", "1": "b", "5": "c"}},
            "id2label must name each number from 0 on",
        ),
        ("bert-labels", {"id2label": ["a", "b", "c"]}, "id2label must name each number from 0 on"),
        (
            "bert-labels",
            {"problem_type": "ranking"},
            "problem_type must be one of single_label_classification",
        ),
        (
            "bert-labels",
            {"problem_type": ["x"]},
            "problem_type must be one of single_label_classification",
        ),
        (
            "bert-labels",
            {"problem_type": "regression"},
            "a regression must have one number here, but num_labels is 3",
        ),
        (
            "bert-labels",
            {"classifier_dropout": 1.5},
            "classifier_dropout must be a share in [0, 1), but is 1.5",
        ),
        (
            "bert-labels",
            {"id2label": {"0": "a", "1": "b"}},
            "classifier.weight must have shape (2, 12), but has (3, 12)",
        ),
        (
            "bert-span",
            {"id2label": {"0": "a", "1": "b", "2": "c"}},
            "a span must have a start and an end, but num_labels is 3",
        ),
        (
            "electra-choice",
            {"summary_type": "last"},
            "electra's summary_type=last is not known here, only first",
        ),
        (
            "electra-choice",
            {"summary_activation": "tanh"},
            "electra's summary_activation=tanh is not known here, only gelu",
        ),
        (
            "bert-tags",
            {"architectures": ["BertForQuestionAnswering"], "id2label": None},
            "tensors are missing: qa_outputs.weight",
        ),
    ],
)
def test_a_head_that_is_not_ours_is_refused(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    saved(name, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | changes))
    with pytest.raises(FolderError) as refusal:
        read_checkpoint(tmp_path)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: reader(pooling="mean"), "head.pooling=first, but this model has mean"),
        (lambda: reader(pair="compared"), "head.pair=joined, but this model has compared"),
        (
            lambda: reader(hidden_width=0),
            "head.hidden_width=8 and head.activation=tanh, but this model has 0",
        ),
        (lambda: reader(activation="relu"), "but this model has 8 and relu"),
        (lambda: reader("tagging", crf=True), "head.crf=false, but this model has a CRF"),
        (lambda: reader("tagging", hidden_width=4), "head.hidden_width=0, but this model has 4"),
        (
            lambda: reader(encoder={"model_type": "bert", "head": "none", "segments": 0}),
            "model.segments of at least 1",
        ),
        (
            lambda: reader(encoder={"model_type": "bert", "head": "none", "norm": "before"}),
            "model.norm=after, but this model has before",
        ),
        (
            lambda: reader(encoder={"model_type": "recurrent"}),
            "(bert, gpt), but the encoder of this one is recurrent",
        ),
        (
            lambda: reader(encoder={"model_type": "t5"}),
            "no architecture of a t5 has a head for classification",
        ),
        (
            lambda: reader("span", encoder={"model_type": "gpt", "documents": "joined"}),
            "no architecture of a gpt2 has a head for span",
        ),
        (
            lambda: reader(encoder={"model_type": "gpt"}, size=24),
            "no marks beyond the vocabulary of its tokenizer, but this model has 4",
        ),
    ],
)
def test_a_reader_that_has_no_counterpart_is_refused_in_one_line(model: Any, said: str) -> None:
    made = model()
    with pytest.raises(UsageError) as refusal:
        target_of("encoder_with_head", made.config, "text-classification")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_bias_that_theirs_has_not_got_must_be_nothing() -> None:
    made = reader(encoder={"model_type": "gpt"})
    target = target_of("encoder_with_head", made.config, "text-classification")
    assert target.architecture == "GPT2ForSequenceClassification"
    nn.init.zeros_(made.head.output.bias)
    assert "score.weight" in their_tensors(made, target)
    nn.init.ones_(made.head.output.bias)
    with pytest.raises(
        UsageError,
        match=r"a GPT2ForSequenceClassification has no head.output.bias, but this model has one",
    ):
        their_tensors(made, target)


def test_the_weights_of_labels_in_the_loss_stay_here(tmp_path: Path) -> None:
    made: Any = reader()
    made.head.set_class_weights(torch.tensor([1.0, 2.0, 3.0]))
    target = target_of("encoder_with_head", made.config, "text-classification")
    write_checkpoint(tmp_path, made, made.config, target)
    again: Any = read_checkpoint(tmp_path).model
    assert again.config.labels == ("z", "a", "b")
    assert torch.equal(again.head.weights, torch.ones(3))
    batch = asked("bert")._replace(targets=torch.tensor([0, 1, 2, 0]))
    plain: Any = reader()
    assert torch.equal(again.loss(batch).total, plain.loss(batch).total)
