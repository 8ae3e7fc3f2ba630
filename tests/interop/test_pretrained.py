"""What a training of a reader begins with: the encoder of any checkpoint, and what fits of its head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tests.interop import headed, published
from tests.interop.headed import asked, close, reader
from tests.interop.published import T5, hf
from tokenizers import processors
from torch import Tensor, nn

from seqloom.config import HeadConfig
from seqloom.errors import FolderError, UsageError
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.interop.pretrained import (
    Pretrained,
    load_pretrained,
    pretrained_encoder,
    pretrained_of_run,
    with_special_tokens,
)
from seqloom.models import model_family
from seqloom.models.electra import Electra, ElectraConfig
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig
from seqloom.run_file import to_plain
from seqloom.training.checkpoints import model_tensors

pytestmark = pytest.mark.usefixtures("one_thread")


def tokenizer_in(folder: Path) -> None:
    """Nineteen words, as many as the random checkpoints have, whose marks are made to be among them."""
    for file in ("config.json", "generation_config.json"):
        if (path := folder / file).exists():
            path.write_text(path.read_text().replace("50256", "0"))
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, **{f"w{i}": i for i in range(4, 19)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))


def saved(name: str, folder: Path) -> Any:
    """A checkpoint of `published` or of `headed`, or the encoder of a T5, with its tokenizer."""
    if name == "t5-encoder":
        torch.manual_seed(1)
        model = hf.T5EncoderModel(hf.T5Config(**T5)).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.4)
        model.save_pretrained(folder)
    else:
        model = (
            headed.saved(name, folder)
            if name in headed.CHECKPOINTS
            else published.saved(name, folder)
        )
    tokenizer_in(folder)
    return model


def new_reader(
    started: Pretrained,
    kind: str = "tagging",
    labels: tuple[str, ...] = ("z", "a", "m m"),
    **head: Any,
) -> EncoderWithHead:
    """A new reader on what was started, as a training makes one."""
    encoder = {"model_type": started.encoder_type, **started.encoder_fields}
    usual = dict(started.heads.get(kind, {}))
    config = EncoderWithHeadConfig(
        kind=kind,  # type: ignore[arg-type]
        encoder=encoder,
        head=HeadConfig(**usual | head),
        labels=labels,
        vocabulary_size=started.vocabulary_size,
    )
    torch.manual_seed(5)
    return EncoderWithHead(config).eval()


def states_of_theirs(name: str, model: Any) -> Tensor:
    """The states of the encoder for what is asked."""
    batch = asked(name)
    mask = batch.tokens >= 0
    body = model.encoder if name.startswith("t5") else model.base_model
    pad = 1 if (pad := model.config.pad_token_id) is None else pad
    more = {"token_type_ids": batch.segments} if name.startswith(("bert", "electra")) else {}
    states: Tensor = body(
        input_ids=batch.tokens.where(mask, pad), attention_mask=mask.long(), **more
    )[0]
    return states


ENCODERS = (
    *("bert", "bert-mlm", "bert-mlm-untied", "bert-pre", "bert-tags", "bert-choice"),
    *("roberta-mlm", "electra-generator", "electra-discriminator", "electra-span"),
    *(
        "gpt2",
        "gpt2-untied",
        "gpt1",
        "gpt2-several",
        "t5",
        "t5-v1.1",
        "t5-v1.1-untied",
        "t5-encoder",
    ),
)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_the_encoder_of_any_checkpoint_reads_as_theirs(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    started = pretrained_encoder(tmp_path)
    made = new_reader(started)
    load_pretrained(made, started)
    batch = asked(name)
    mask = batch.tokens >= 0
    assert close(made.read(batch)[mask], states_of_theirs(name, theirs)[mask], 1e-5)
    assert started.tokenizer is not None
    assert started.tokenizer.encode(["w7 w4"]) == [[7, 4]]
    assert started.origin is not None
    assert started.vocabulary_size == 19
    trained = {
        name.removeprefix("encoder.")
        for name, _ in made.named_parameters()
        if name.startswith("encoder.")
    }
    assert trained == started.encoder_tensors.keys()  # nothing without a use, nothing at random


def test_a_pooler_is_the_hidden_layer_and_what_is_new_is_named(tmp_path: Path) -> None:
    theirs = saved("bert-pre", tmp_path)
    started = pretrained_encoder(tmp_path)
    assert started.notes == (
        "not read: the head of masked tokens (5 tensors), which the model here has not got",
        "not read: the head of next sentences (2 tensors), which the model here has not got",
    )
    for kind in ("classification", "multi-label", "regression", "choice"):
        made = new_reader(started, kind)
        assert load_pretrained(made, started) == [
            "new, and to be trained: head.output.weight, head.output.bias"
        ]
        assert torch.equal(made.head.hidden.weight, theirs.bert.pooler.dense.weight)  # type: ignore[union-attr]
        assert torch.equal(made.head.hidden.bias, theirs.bert.pooler.dense.bias)  # type: ignore[union-attr]
    for head in (
        {"activation": "relu"},
        {"pooling": "mean"},
        {"hidden_width": 5},
        {"hidden_width": 0},
    ):
        made = new_reader(started, "classification", **head)
        fresh = new_reader(started, "classification", **head)
        said = load_pretrained(made, started)
        assert (
            said[1] == "not used, as the new head is another: head.hidden.weight, head.hidden.bias"
        )
        assert "head.output.weight" in said[0]
        for name, parameter in made.head.named_parameters():
            assert torch.equal(parameter, dict(fresh.head.named_parameters())[name])


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        "bert-labels",
        "roberta-tags",
        "electra-labels",
        "electra-choice",
        "bert-span",
        "gpt2-several",
        "roberta-number",
    ],
)
def test_a_head_is_taken_where_what_it_answers_is_the_same(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    found, started, batch = read_checkpoint(tmp_path), pretrained_encoder(tmp_path), asked(name)
    same = new_reader(started, found.config.kind, found.config.labels)
    assert load_pretrained(same, started) == []
    assert torch.equal(same(batch), found.model(batch))
    other = new_reader(started, "tagging", ("z", "a", "another"))
    new, left = load_pretrained(other, started)
    assert new == "new, and to be trained: head.output.weight, head.output.bias"
    assert left.startswith("not used, as the new head is another: head.")


def test_the_head_of_a_family_is_its_own(tmp_path: Path) -> None:
    for name, activation in (
        ("electra-discriminator", "gelu"),
        ("roberta-mlm", "tanh"),
        ("bert", "tanh"),
    ):
        saved(name, tmp_path / name)
        heads = pretrained_encoder(tmp_path / name).heads
        assert heads["classification"] == {
            "hidden_width": 12,
            "activation": activation,
            "pooling": "first",
            "pair": "joined",
        }
        assert heads.keys() == {"classification", "multi-label", "regression", "choice"}
    saved("gpt1", tmp_path / "gpt1")
    assert pretrained_encoder(tmp_path / "gpt1").heads["regression"] == {
        "hidden_width": 0,
        "pooling": "last",
        "pair": "joined",
    }


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied"])
def test_marks_are_new_rows_and_change_nothing_else(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    started = pretrained_encoder(tmp_path)
    tensors, fields = with_special_tokens(
        started.encoder_tensors, started.encoder_fields, 3, torch.Generator().manual_seed(3)
    )
    again, _ = with_special_tokens(
        started.encoder_tensors, started.encoder_fields, 3, torch.Generator().manual_seed(3)
    )
    assert fields == started.encoder_fields | {"vocabulary_size": 22}
    grown = {"embedding.weight"} | ({"output.weight"} if name == "gpt2-untied" else set())
    assert {key for key in tensors if tensors[key] is not started.encoder_tensors[key]} == grown
    for key in grown:
        assert torch.equal(tensors[key][:19], started.encoder_tensors[key])
        assert torch.equal(tensors[key], again[key])
        assert 0.005 < float(tensors[key][19:].std()) < 0.04
    marked = replace(started, encoder_tensors=tensors, encoder_fields=fields)
    made, plain = new_reader(marked), new_reader(started)
    load_pretrained(made, marked)
    load_pretrained(plain, started)
    batch = asked(name)
    mask = batch.tokens >= 0
    assert torch.equal(made.read(batch)[mask], plain.read(batch)[mask])
    assert made.read(batch._replace(tokens=batch.tokens.where(mask, 21))).isfinite().all()


@torch.no_grad()
def test_a_reader_of_ours_begins_another(tmp_path: Path) -> None:
    for encoder in (
        {"model_type": "recurrent"},
        {"model_type": "bert", "layers": 1, "context": 16, "head": "none"},
    ):
        made = reader(encoder=encoder)
        save_file(
            {key: tensor.contiguous() for key, tensor in made.state_dict().items()},
            tmp_path / "model.safetensors",
        )
        content = {
            "model_type": "encoder_with_head",
            "task": "text-classification",
            **to_plain(made.config),
        }
        started = pretrained_of_run(content, tmp_path / "model.safetensors")
        same = new_reader(started, "classification", ("z", "a", "b"))
        assert load_pretrained(same, started) == []
        batch = asked("bert")
        assert torch.equal(same(batch), made(batch))
        # another order is another head
        other = new_reader(started, "classification", ("a", "b", "z"))
        assert load_pretrained(other, started)[0].startswith("new, and to be trained: head.")
        assert torch.equal(other.read(batch), made.read(batch))


@torch.no_grad()
def test_a_model_of_ours_begins_a_reader_without_its_heads(tmp_path: Path) -> None:
    for model_type, left in (("bert", "output."), ("gpt", None), ("t5", "decoder.")):
        config_class, model_class, _ = model_family(model_type)
        fields = {"vocabulary_size": 20, "width": 8, "heads": 2} | (
            {"pooler": True} if model_type == "bert" else {}
        )
        config = config_class(**fields)
        model = model_class(config).eval()
        state = model.state_dict(keep_vars=True)
        once = {
            id(tensor): (key, tensor.detach().contiguous())
            for key, tensor in reversed(state.items())
        }
        save_file(dict(once.values()), tmp_path / "model.safetensors")
        content = {
            "model_type": model_type,
            "task": "x",
            "seqloom_version": "0",
            **to_plain(config),
        }
        started = pretrained_of_run(content, tmp_path / "model.safetensors")
        made = new_reader(started)
        load_pretrained(made, started)
        batch = asked(model_type)
        mask = batch.tokens >= 0
        inputs = batch.tokens.where(mask, 0)
        if model_type == "bert":
            expected = model(inputs, mask, batch.segments)
            assert started.head_tensors.keys() == {"hidden.weight", "hidden.bias"}
        else:
            expected = model.encoded(inputs) if model_type == "t5" else model.read(inputs, None)[0]
        assert torch.equal(made.read(batch)[mask], expected[mask])
        assert left is None or left in started.notes[0]
        assert (left is None) == (started.notes == ())


@torch.no_grad()
def test_the_discriminator_of_an_electra_begins_a_reader(tmp_path: Path) -> None:
    config = ElectraConfig(vocabulary_size=20, width=8, heads=2, embedding_width=4, layers=2)
    model = Electra(config).eval()
    save_file(model_tensors(model), tmp_path / "model.safetensors")
    content = {"model_type": "electra", "task": "fill-mask", **to_plain(config)}
    started = pretrained_of_run(content, tmp_path / "model.safetensors")
    made = new_reader(started)
    load_pretrained(made, started)
    batch = asked("bert")
    mask = batch.tokens >= 0
    expected = model.discriminator(batch.tokens.where(mask, 0), mask, batch.segments)
    assert torch.equal(made.read(batch)[mask], expected[mask])
    assert started.encoder_type == "bert"
    assert "head.hidden.bias, head.hidden.weight, replaced." in started.notes[0]


def test_what_does_not_read_for_a_head_is_refused(tmp_path: Path) -> None:
    for name, folder in (("vit", tmp_path / "vit"), ("bart", tmp_path / "bart")):
        published.saved(name, folder)
        with pytest.raises(
            UsageError,
            match=r"starts from another one, or from one of t5, bert, gpt, .*, but this is a",
        ):
            pretrained_encoder(folder)
    with pytest.raises(UsageError, match="but this is a seq2seq"):
        pretrained_of_run({"model_type": "seq2seq"}, tmp_path / "model.safetensors")
    saved("bert", tmp_path / "one")
    saved("roberta-mlm", tmp_path / "two")
    one, two = pretrained_encoder(tmp_path / "one"), pretrained_encoder(tmp_path / "two")
    with pytest.raises(
        UsageError,
        match="the encoder must have the sizes of what it begins with, but differs in encoder",
    ):
        load_pretrained(new_reader(one), two)
    theirs = published.random_model("bert")
    with torch.no_grad():
        theirs.pooler.dense.bias[0] = float("nan")
    theirs.save_pretrained(tmp_path / "one")
    with pytest.raises(
        FolderError, match=r"numbers must be finite, but pooler.dense.bias has NaN or infinity"
    ):
        pretrained_encoder(tmp_path / "one")
