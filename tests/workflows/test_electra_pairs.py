"""An ELECTRA of the hub, discriminator and generator, as one run folder and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.workflows.encoders import SIZES, TEXTS, saved
from torch import nn

import seqloom
from seqloom.errors import FolderError
from seqloom.models.electra import Electra
from seqloom.runs.run_folder import load_run
from seqloom.workflows.exchange import export_model, import_model

pytestmark = pytest.mark.usefixtures("one_thread")
GENERATOR = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 7}
MASKED = ["the [MASK] sleeps .", "a dog [MASK] on [MASK]"]


def made(kind: Any, sizes: dict[str, Any]) -> Any:
    model = kind(hf.ElectraConfig(**{**SIZES, "embedding_size": 5, **sizes})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def pair(folder: Path, **sizes: Any) -> tuple[Any, Any]:
    """Both of one training: with the same embeddings."""
    saved(folder)  # for its tokenizer
    torch.manual_seed(5)
    discriminator = made(hf.ElectraForPreTraining, {})
    generator = made(hf.ElectraForMaskedLM, {**GENERATOR, **sizes})
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    discriminator.save_pretrained(folder)
    generator.save_pretrained(folder / "generator")
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, folder / "generator" / name)
    return discriminator, generator


@torch.no_grad()
def test_a_pair_becomes_one_run_folder_and_goes_back_as_it_was(tmp_path: Path) -> None:
    discriminator, generator = pair(tmp_path / "hub")
    import_model(str(tmp_path / "hub"), str(tmp_path / "run"))
    run = load_run(tmp_path / "run", "cpu")
    assert (run.task, run.model_type) == ("fill-mask", "electra")
    assert isinstance(run.model, Electra)
    assert run.model.config.generator_fraction == pytest.approx(1 / 3)
    # masks are filled by the generator, vectors are the discriminator's
    filled = seqloom.load(tmp_path / "run", "cpu").fill_masks(MASKED, n_best=3)
    assert filled == seqloom.load(tmp_path / "hub" / "generator", "cpu").fill_masks(MASKED, 3)
    vectors = seqloom.load(tmp_path / "run", "cpu").vectors(TEXTS)
    assert vectors.shape == (len(TEXTS), SIZES["hidden_size"])
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    for one, folder, kind in (
        (discriminator, tmp_path / "out", hf.ElectraForPreTraining),
        (generator, tmp_path / "out" / "generator", hf.ElectraForMaskedLM),
    ):
        back: Any = kind.from_pretrained(folder)
        assert hf.AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()
        torch.testing.assert_close(back(**inputs).logits, one(**inputs).logits)
    config = json.loads((tmp_path / "out" / "generator" / "config.json").read_text())
    assert config["architectures"] == ["ElectraForMaskedLM"]
    # and it is the same pair again
    import_model(str(tmp_path / "out"), str(tmp_path / "again"))
    again = load_run(tmp_path / "again", "cpu").model.state_dict()
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, again[name]), name


def test_a_discriminator_without_its_generator_is_one_of_replaced_tokens(tmp_path: Path) -> None:
    pair(tmp_path / "hub")
    shutil.rmtree(tmp_path / "hub" / "generator")
    import_model(str(tmp_path / "hub"), str(tmp_path / "run"))
    assert load_run(tmp_path / "run", "cpu").task == "replaced-token"


def other_embeddings(folder: Path) -> None:
    other = made(hf.ElectraForMaskedLM, GENERATOR)
    other.save_pretrained(folder / "generator")


def other_width(folder: Path) -> None:
    other = made(hf.ElectraForMaskedLM, {**GENERATOR, "intermediate_size": 8})
    other.save_pretrained(folder / "generator")


def no_generator(folder: Path) -> None:
    made(hf.ElectraForPreTraining, GENERATOR).save_pretrained(folder / "generator")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_embeddings, "generator and discriminator must have the same embedding.weight"),
        (other_width, "must have feed_forward_width 7, but has 8"),
        (no_generator, "must be a masked language model, but is one of replaced-token"),
    ],
)
def test_what_was_not_trained_together_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    pair(tmp_path / "hub")
    change(tmp_path / "hub")
    with pytest.raises(FolderError) as refusal:
        import_model(str(tmp_path / "hub"), str(tmp_path / "run"))
    assert said in str(refusal.value)
    assert not (tmp_path / "run").exists()
