"""What is no checkpoint of ours is refused in one line that names what is wrong, and nothing is left at
random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop.published import saved
from torch import Tensor

from seqloom.errors import FolderError, UsageError
from seqloom.interop.checkpoint import is_hub_folder, read_checkpoint
from seqloom.interop.export import target_of
from seqloom.interop.hub_origin import HubOrigin
from seqloom.interop.weights import StoredWeights, write_weights
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.runs import run_folder

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved("gpt2", tmp_path / "gpt2")
    return tmp_path / "gpt2"


def change(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in (content | values).items() if value != "gone"})
    )


def rewrite(folder: Path, **tensors: Tensor | None) -> None:
    """Tensors changed, added, or taken out where None; a name's dots are written as __."""
    known = load_file(folder / WEIGHTS)
    changed = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(
        {name: tensor for name, tensor in (known | changed).items() if tensor is not None},
        folder / WEIGHTS,
    )


def refusal(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        read_checkpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"model_type": "llama"},
            (
                "model_type must be one of bert, roberta, electra, openai-gpt, gpt2, t5, bart, marian, vit,"
                " but is llama"
            ),
        ),
        ({"model_type": "gone"}, "model_type must be one of"),
        (
            {"architectures": ["GPT2DoubleHeadsModel"]},
            "GPT2ForSequenceClassification, but is ['GPT2DoubleHeadsModel']",
        ),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "gpt2's scale_attn_by_inverse_layer_idx=True is not known here, only False",
        ),
        ({"add_cross_attention": True}, "gpt2's add_cross_attention=True is not known here"),
        (
            {"activation_function": "quick_gelu"},
            "gpt2's activation_function=quick_gelu is not known here, only gelu",
        ),
        ({"activation_function": ["gelu"]}, "is not known here"),
        (
            {"architectures": [["x"]]},
            "one of GPT2LMHeadModel, GPT2Model, GPT2ForSequenceClassification, but is [['x']]",
        ),
        ({"n_embd": 3 * 2**40}, "sizes must be those of a model, but with these none can be made"),
        ({"n_embd": 3 * 10**30}, "sizes must be those of a model, but with these none can be made"),
        ({"n_layer": 2**40}, f"n_layer must be at most the number of tensors, 40, but is {2**40}"),
        ({"resid_pdrop": float("nan")}, "a number must be finite, but one is NaN"),
        ({"n_head": 5}, "n_head must divide n_embd, but 12 is not a multiple of 5"),
        ({"n_head": "three"}, "n_head must be"),
        ({"n_head": 4, "num_attention_heads": 5}, "n_head must divide n_embd"),
        (
            {"architectures": "GPT2LMHeadModel"},
            "architectures of a gpt2 must be a list with one of",
        ),
        ({"architectures": [{"x": 1}]}, "but is [{'x': 1}]"),
        ({"n_embd": 24}, "transformer.wte.weight must have shape (19, 24), but has (19, 12)"),
        ({"n_layer": 4}, "these tensors are missing: transformer.h.3.ln_1.weight"),
        ({"n_layer": 2}, "have none: transformer.h.2."),
        ({"tie_word_embeddings": False}, "these tensors are missing: lm_head.weight"),
    ],
)
def test_a_configuration_that_is_not_ours(folder: Path, values: dict[str, Any], said: str) -> None:
    change(folder, **values)
    assert said in refusal(folder)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("t5", {"feed_forward_proj": ["relu"]}, "t5's feed_forward_proj=['relu']"),
        ("t5", {"is_gated_act": True}, "is_gated_act=True is not known here"),
        (
            "t5",
            {"relative_attention_num_buckets": 1},
            "relative_attention_num_buckets must be a multiple of 4, but is 1",
        ),
        (
            "t5",
            {"relative_attention_max_distance": 3},
            "relative_attention_max_distance must be above half of relative_attention_num_buckets",
        ),
        (
            "t5",
            {"num_decoder_layers": 2**40},
            "num_decoder_layers must be at most the number of tensors",
        ),
        (
            "roberta",
            {"pad_token_id": "a"},
            "roberta's pad_token_id must be a number from 0 on, but is a",
        ),
        (
            "roberta",
            {"pad_token_id": [1]},
            "roberta's pad_token_id must be a number from 0 on, but is [1]",
        ),
        (
            "roberta",
            {"max_position_embeddings": "13"},
            "roberta's max_position_embeddings must be a number from 0 on, but is 13",
        ),
        (
            "vit",
            {"id2label": {"a": "x"}},
            "vit's id2label must name each number from 0 on, but is {'a': 'x'}",
        ),
        (
            "vit",
            {"id2label": ["x"]},
            "vit's id2label must name each number from 0 on, but is ['x']",
        ),
        ("vit", {"id2label": None, "num_labels": 10**12}, "vit's num_labels must be from 1 to"),
        (
            "vit",
            {"architectures": ["ViTModel"]},
            "must be a list with one of ViTForImageClassification, but is ['ViTModel']",
        ),
        (
            "marian",
            {"decoder_layers": 2**40},
            "decoder_layers must be at most the number of tensors",
        ),
    ],
)
def test_a_value_that_is_none(tmp_path: Path, name: str, values: dict[str, Any], said: str) -> None:
    saved(name, tmp_path)
    change(tmp_path, **values)
    assert said in refusal(tmp_path)


def test_a_tensor_too_few_too_many_or_of_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, transformer__wpe__weight=None)
    assert "missing: transformer.wpe.weight" in refusal(folder)
    rewrite(folder, transformer__wpe__weight=torch.zeros(10, 12))
    assert "transformer.wpe.weight must have shape (11, 12), but has (10, 12)" in refusal(folder)
    rewrite(
        folder,
        transformer__wpe__weight=torch.zeros(11, 12),
        transformer__h__0__ln_3__weight=torch.zeros(2),
    )
    assert "have none: transformer.h.0.ln_3.weight" in refusal(folder)


def test_buffers_that_carry_nothing_and_true_copies_are_taken_in_silence(folder: Path) -> None:
    embedding = load_file(folder / WEIGHTS)["transformer.wte.weight"]
    mask = torch.ones(1, 1, 11, 11, dtype=torch.bool).tril()
    rewrite(
        folder,
        transformer__h__0__attn__bias=mask,
        transformer__h__1__attn__masked_bias=torch.tensor(-1e4),
        lm_head__weight=embedding,
    )
    found = read_checkpoint(folder)
    assert found.notes == []
    assert found.config.tie_output


def test_an_output_that_is_not_what_it_is_said_to_be_tied_with_is_kept_and_said(
    folder: Path,
) -> None:
    rewrite(folder, lm_head__weight=torch.ones(19, 12))
    found = read_checkpoint(folder)
    assert not found.config.tie_output
    assert "lm_head.weight is not transformer.wte.weight" in found.notes[0]


def test_an_embedding_under_the_name_of_a_copy_is_taken_and_never_the_output(
    tmp_path: Path,
) -> None:
    """As in madlad400, whose file has no shared.weight."""
    saved("t5-v1.1-untied", tmp_path)
    change(tmp_path, tie_word_embeddings=False)
    known, before = load_file(tmp_path / WEIGHTS), read_checkpoint(tmp_path)
    rewrite(
        tmp_path,
        shared__weight=None,
        encoder__embed_tokens__weight=None,
        decoder__embed_tokens__weight=known["shared.weight"].clone(),
    )
    after = read_checkpoint(tmp_path)
    assert after.config == before.config
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[name], tensor)
    rewrite(tmp_path, decoder__embed_tokens__weight=None)
    assert "missing: shared.weight" in refusal(tmp_path)


def test_the_weight_of_an_untied_output_is_no_embedding(folder: Path) -> None:
    embedding = load_file(folder / WEIGHTS)["transformer.wte.weight"]
    rewrite(folder, transformer__wte__weight=None, lm_head__weight=embedding)
    assert read_checkpoint(folder).config.tie_output
    change(folder, tie_word_embeddings=False)
    assert "missing: transformer.wte.weight" in refusal(folder)


def test_a_type_of_weights_that_is_not_kept_is_said(folder: Path) -> None:
    change(folder, dtype="float16")
    assert read_checkpoint(folder).notes == [
        "dtype=float16 of config.json is not kept: weights are float32"
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("adapter_config.json", "peft_type must be LORA"),
        ("model_index.json", "a pipeline of diffusers"),
        ("small.gguf", "a model for llama.cpp"),
        ("notes.txt", "holds no config.json"),
    ],
)
def test_a_folder_that_is_no_model_is_called_what_it_is(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / name).write_text("{}")
    for ask in (run_folder.load_run, run_folder.pretrained_from):
        with pytest.raises(FolderError, match=said):
            ask(tmp_path)


@pytest.mark.parametrize("hub", [{}, [], 3, {"config": []}, {"config": {}, "generation": 3}])
def test_what_a_run_folder_says_of_its_checkpoint_may_be_damaged(folder: Path, hub: Any) -> None:
    with pytest.raises(FolderError, match=r"config\.json: hub must hold config and generation"):
        HubOrigin.of_run(folder, {"hub": hub})


def test_copies_and_sinusoids_that_are_none_are_refused(tmp_path: Path) -> None:
    saved("marian", tmp_path)
    known = load_file(tmp_path / WEIGHTS)
    rewrite(tmp_path, model__encoder__embed_tokens__weight=known["model.shared.weight"] + 1)
    assert "model.encoder.embed_tokens.weight must be the same as model.shared.weight" in refusal(
        tmp_path
    )
    angles = torch.arange(12)[:, None] * 10000.0 ** (-torch.arange(0, 12, 2) / 12)
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    rewrite(
        tmp_path,
        model__encoder__embed_tokens__weight=None,
        model__encoder__embed_positions__weight=table,
    )
    assert read_checkpoint(tmp_path).notes == []
    rewrite(tmp_path, model__encoder__embed_positions__weight=table.flip(0))
    assert "have none: model.encoder.embed_positions.weight" in refusal(tmp_path)


def test_what_our_model_has_not_got_is_said(tmp_path: Path) -> None:
    saved("bert-pre", tmp_path)
    change(tmp_path, architectures=["BertForMaskedLM"])
    notes = read_checkpoint(tmp_path).notes
    assert notes == [
        "not read: the pooler (2 tensors), which the model here has not got",
        "not read: the head of next sentences (2 tensors), which the model here has not got",
    ]
    change(tmp_path, quantization_config={"bits": 8})
    assert (
        read_checkpoint(tmp_path)
        .notes[0]
        .startswith("quantization_config of config.json changes nothing here")
    )
    saved("bart", tmp_path / "bart")
    change(tmp_path / "bart", encoder_layerdrop=0.1)
    assert read_checkpoint(tmp_path / "bart").notes == [
        "encoder_layerdrop=0.1 changes training only, and there is none here"
    ]


def test_a_new_head_is_named_as_new_and_only_where_it_may_be(tmp_path: Path) -> None:
    saved("bert", tmp_path)
    change(tmp_path, architectures=["BertForMaskedLM"])
    assert "missing: cls.predictions.transform.dense.weight" in refusal(tmp_path)
    found = read_checkpoint(tmp_path, new=("head.", "output."))
    (new,) = [note for note in found.notes if note.startswith("new")]
    assert (
        new
        == "new, and to be trained: head.hidden.bias, head.hidden.weight, head.norm.bias, head.norm.weight,"
        " output.bias"
    )
    assert not any(parameter.is_meta for parameter in found.model.parameters())


def test_names_of_old_files_are_understood(tmp_path: Path) -> None:
    saved("bert-mlm", tmp_path)
    known = load_file(tmp_path / WEIGHTS)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for name, t in known.items()
    }
    before = read_checkpoint(tmp_path).model.state_dict()
    save_file(old | {"bert.embeddings.position_ids": torch.arange(13)[None]}, tmp_path / WEIGHTS)
    after = read_checkpoint(tmp_path).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "model.pt"]
)
def test_pickles_are_not_opened(folder: Path, name: str) -> None:
    (folder / WEIGHTS).rename(folder / name)
    message = refusal(folder)
    assert name in message
    assert "save_pretrained" in message


def test_a_folder_without_weights_or_with_damaged_ones_is_refused(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    for damaged in (content[:-3], content[:40], b"", b"\xff" * 64):
        (folder / WEIGHTS).write_bytes(damaged)
        assert "must be a safetensors file" in refusal(folder)
    (folder / WEIGHTS).unlink()
    assert "must hold model.safetensors or model.safetensors.index.json" in refusal(folder)


def test_quantised_numbers_are_refused(folder: Path) -> None:
    rewrite(folder, transformer__wpe__weight=torch.zeros(11, 12).to(torch.float8_e4m3fn))
    assert "transformer.wpe.weight is F8_E4M3" in refusal(folder)


def test_sixteen_bits_become_thirty_two_unless_asked_and_it_is_said(folder: Path) -> None:
    known = load_file(folder / WEIGHTS)
    save_file({name: tensor.bfloat16() for name, tensor in known.items()}, folder / WEIGHTS)
    found = read_checkpoint(folder)
    assert found.notes == ["weights in bfloat16 were made float32"]
    assert {parameter.dtype for parameter in found.model.parameters()} == {torch.float32}
    assert {
        parameter.dtype for parameter in read_checkpoint(folder, torch.bfloat16).model.parameters()
    } == {torch.bfloat16}


def test_shards_are_one_whole_and_stay_in_the_folder(tmp_path: Path) -> None:
    saved("t5", tmp_path / "whole")
    saved("t5", tmp_path / "shards", max_shard_size="2KB")
    index = tmp_path / "shards" / "model.safetensors.index.json"
    one, two = (read_checkpoint(tmp_path / name).model.state_dict() for name in ("whole", "shards"))
    assert len(list(index.parent.glob("model-*.safetensors"))) > 2
    assert all(torch.equal(one[name], two[name]) for name in one)
    content = json.loads(index.read_text())
    name, shard = next(iter(content["weight_map"].items()))
    (index.parent / shard).rename(tmp_path / "elsewhere.safetensors")
    assert f"{shard} is missing" in refusal(index.parent)
    for outside in ("../elsewhere.safetensors", str(tmp_path / "elsewhere.safetensors"), "..", ""):
        moved = {
            key: outside if value == shard else value
            for key, value in content["weight_map"].items()
        }
        index.write_text(json.dumps({"weight_map": moved}))
        assert "a shard must be a file in the folder itself" in refusal(index.parent)
    broken: Any
    for broken in ({}, {"weight_map": {}}, {"weight_map": {name: 1}}, []):
        index.write_text(json.dumps(broken))
        assert "weight_map must say" in refusal(index.parent)


@pytest.mark.parametrize("limit", [1, 100, 10**9])
def test_shards_that_are_written_are_read_again(tmp_path: Path, limit: int) -> None:
    tensors = {f"t{i}": torch.full((i + 1,), float(i)) for i in range(9)}
    names = write_weights(tmp_path, tensors, limit)
    assert (len(names) == 1) == (limit == 10**9)
    weights = StoredWeights(tmp_path)
    assert {name: weights.read(name).tolist() for name in weights.stored} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    assert all((tmp_path / name).stat().st_size < limit + 1000 for name in names)


def test_what_the_hub_has_no_name_for_is_refused_by_the_option() -> None:
    small: dict[str, Any] = {
        "vocabulary_size": 9,
        "width": 4,
        "layers": 1,
        "heads": 1,
        "context": 5,
    }
    options: dict[str, Any]
    for options, said in (
        ({"positions": "rotary"}, "model.positions=learned, but this model has rotary"),
        ({"biases": False}, "model.biases=True, but this model has False"),
        ({"activation": "swish"}, "cannot have model.activation=swish"),
    ):
        with pytest.raises(UsageError, match=said):
            target_of("gpt", GPTConfig(**small, **options), "text-generation")
    assert (
        target_of("gpt", GPT(GPTConfig(**small)).config, "text-generation").architecture
        == "GPT2LMHeadModel"
    )
    assert (
        target_of(
            "gpt", GPTConfig(**small, norm="after", activation="gelu-tanh"), "text-generation"
        ).hub_type
        == "openai-gpt"
    )
    with pytest.raises(UsageError, match="but this is a recurrent_lm"):
        target_of("recurrent_lm", RecurrentLMConfig(vocabulary_size=9), "text-generation")


def test_what_is_a_directory_of_the_hub_is_known_by_its_configuration(
    folder: Path, tmp_path: Path
) -> None:
    assert is_hub_folder(folder)
    assert not is_hub_folder(tmp_path)
    change(folder, seqloom_version="1")
    assert not is_hub_folder(folder)
