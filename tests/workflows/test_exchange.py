"""A model of the hub as a run folder, and back: the same texts everywhere."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.interop.published import BART, BERT, GPT, VIT, hf
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import nn

import seqloom
from seqloom.errors import FolderError, UsageError
from seqloom.interop import hub
from seqloom.runs import run_folder
from seqloom.tasks.translation.translator import Translator
from seqloom.text.hub.tokenizer import read_hub_tokenizer
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.exchange import export_model, import_model

pytestmark = pytest.mark.usefixtures("one_thread")
MARKS = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_bos_token_id": 0,
}
TEXTS = ["a dog runs in the rain", "the cat sleeps", "rain and sun"]


def byte_level(folder: Path, **special: str) -> int:
    """A byte-level BPE, saved as `transformers` does; returns its size."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    if "cls_token" in special:
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    hf.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    return made.get_vocab_size()


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def sharpened(model: Any, folder: Path) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.eval().save_pretrained(folder)


def log_probabilities(folder: Path) -> list[float]:
    """Of the texts."""
    return [one.log_probability for one in seqloom.Scorer(folder).score(TEXTS)]


def save_gpt2(folder: Path) -> None:
    size = byte_level(folder, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    torch.manual_seed(1)
    sharpened(
        hf.GPT2LMHeadModel(
            hf.GPT2Config(
                **{**GPT, "vocab_size": size, "n_positions": 40}, bos_token_id=0, eos_token_id=0
            )
        ),
        folder,
    )


def save_bart(folder: Path) -> None:
    size = byte_level(
        folder,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
    )
    torch.manual_seed(3)
    config = hf.BartConfig(
        **{**BART, "vocab_size": size, "max_position_embeddings": 40},
        forced_bos_token_id=0,
        num_beams=2,
        max_length=9,
    )
    sharpened(hf.BartForConditionalGeneration(config), folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"num_beams": 2, "max_length": 9, **MARKS})
    )


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "gpt2"
    save_gpt2(folder)
    return folder


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "bart"
    save_bart(folder)
    return folder


def test_a_directory_is_opened_as_it_is_and_as_a_run_folder_alike(
    gpt2: Path, tmp_path: Path, notices: list[str]
) -> None:
    result = import_model(str(gpt2), str(tmp_path / "run"))
    assert (result["model"], result["task"]) == ("gpt", "text-generation")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {
        "config.json",
        "tokenizer.json",
        "generation_config.json",
        "model.safetensors",
        "manifest.json",
        "README.md",
    }
    one, two = run_folder.load_run(gpt2), run_folder.load_run(tmp_path / "run")
    assert one.tokenizer.special_ids == two.tokenizer.special_ids
    assert one.tokenizer.special_ids.pad == -1 == one.model.config.pad_id  # type: ignore[union-attr]
    assert one.tokenizer.encode(TEXTS) == two.tokenizer.encode(TEXTS)
    assert one.decode == two.decode
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name])
    assert log_probabilities(gpt2) == pytest.approx(log_probabilities(tmp_path / "run"), abs=1e-4)


def test_a_language_model_scores_as_transformers_does(gpt2: Path) -> None:
    theirs = hf.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(gpt2)
    for text, scored in zip(TEXTS, log_probabilities(gpt2), strict=True):
        ids = torch.tensor([[0, *tokenizer(text).input_ids, 0]])
        with torch.no_grad():
            logp = theirs(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).sum()
        assert scored == pytest.approx(float(logp), abs=1e-3)


def test_an_encoder_decoder_writes_what_transformers_writes(bart: Path, tmp_path: Path) -> None:
    import_model(str(bart), str(tmp_path / "run"))
    bundle = run_folder.load_run(tmp_path / "run")
    assert (bundle.task, bundle.decode.beam, bundle.decode.max_length) == ("translation", 2, 7)
    assert bundle.tokenizer.special_ids.bos == (2, 0)
    theirs, tokenizer = (
        hf.BartForConditionalGeneration.from_pretrained(bart).eval(),
        hf.AutoTokenizer.from_pretrained(bart),
    )
    expected = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer(text).input_ids])
        rules: dict[str, Any] = {
            "num_beams": 1,
            "do_sample": False,
            "max_length": 9,
            "forced_eos_token_id": None,
        }
        out = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), bad_words_ids=[[0], [1], [3]], **rules
        )
        expected.append(tokenizer.decode(out[0], skip_special_tokens=True))
    assert seqloom.load(tmp_path / "run").predict(TEXTS, beam=1) == expected


@pytest.mark.parametrize("source", ["gpt2", "bart"])
def test_in_and_out_is_the_same_checkpoint(
    source: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(source)
    import_model(str(folder), str(tmp_path / "run"))
    result = export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    assert result["files"] == ["model.safetensors"]
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == pytest.approx(
        (folder / "model.safetensors").stat().st_size, rel=0.01
    )
    ours, theirs = (
        hf.AutoModel.from_pretrained(path).state_dict() for path in (tmp_path / "out", folder)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    mine, known = (hf.AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", folder))
    assert mine(TEXTS).input_ids == known(TEXTS).input_ids
    assert mine.eos_token == known.eos_token
    for name in ("config.json", "generation_config.json"):
        before, after = (
            json.loads((path / name).read_text()) for path in (folder, tmp_path / "out")
        )
        assert {key: value for key, value in after.items() if key in before} == before


def test_shards_are_written_where_asked(gpt2: Path, tmp_path: Path) -> None:
    export_model(str(gpt2), str(tmp_path / "out"), shard_mib=1)
    again = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert torch.equal(
        again.transformer.wte.weight,
        hf.GPT2LMHeadModel.from_pretrained(gpt2).transformer.wte.weight,
    )


def test_a_model_of_our_own_opens_in_transformers(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 20))
    settings = [
        "train.max_steps=2",
        "data.tokenizer=bytes",
        "model.context=32",
        "train.evaluate_every=2",
    ]
    seqloom.train(
        "text-generation",
        [str(tmp_path / "text.txt")],
        output_dir=tmp_path / "run",
        model="gpt:tiny",
        settings=settings,
    )
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    ours = run_folder.load_run(tmp_path / "run")
    theirs, tokenizer = (
        hf.GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval(),
        hf.AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    assert tokenizer(TEXTS, add_special_tokens=False).input_ids == ours.tokenizer.encode(TEXTS)
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id, theirs.config.pad_token_id) == (
        1,
        2,
        0,
    )
    ids = torch.tensor([[1, *ours.tokenizer.encode(TEXTS[:1])[0]]])
    model: Any = ours.model
    with torch.no_grad():
        logits = model(ids)[0]
    # ids that are never a target have no probability here
    targets = logits.isfinite()
    assert torch.allclose(theirs(ids).logits[targets], logits[targets], atol=1e-5)
    assert log_probabilities(tmp_path / "out") == pytest.approx(
        log_probabilities(tmp_path / "run"), abs=1e-3
    )


def test_an_encoder_and_a_model_of_images_are_imported(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "##s", "rain", "the"]
    made = tokenizers.Tokenizer(
        models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    hf.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(tmp_path / "bert")
    sharpened(hf.BertModel(hf.BertConfig(**{**BERT, "vocab_size": 11})), tmp_path / "bert")
    result = import_model(str(tmp_path / "bert"), str(tmp_path / "run"))
    assert result["task"] == "feature-extraction"
    bundle = run_folder.load_run(tmp_path / "run")
    assert bundle.tokenizer.special_ids[4:8] == ((2,), (3,), (3,), 4)
    sharpened(hf.ViTForImageClassification(hf.ViTConfig(**VIT)), tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    import_model(str(tmp_path / "vit"), str(tmp_path / "vit-run"))
    assert run_folder.open_model(tmp_path / "vit-run").model.config.labels == ("cat", "dog", "a b")  # type: ignore[union-attr]
    export_model(str(tmp_path / "vit-run"), str(tmp_path / "vit-out"))
    assert hf.ViTForImageClassification.from_pretrained(tmp_path / "vit-out").config.id2label == {
        0: "cat",
        1: "dog",
        2: "a b",
    }


def test_an_id_that_the_tokenizer_has_and_the_model_not_is_refused(
    gpt2: Path, tmp_path: Path
) -> None:
    byte_level(tmp_path, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    torch.manual_seed(1)
    sharpened(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, bos_token_id=0, eos_token_id=0)), tmp_path)
    with pytest.raises(FolderError, match="only 19"):
        run_folder.load_run(tmp_path)


def test_what_is_neither_a_directory_of_the_hub_nor_arpa_is_refused(
    gpt2: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="must be a Hugging Face directory"):
        import_model(str(tmp_path / "empty"), str(tmp_path / "run"))
    (tmp_path / "text.txt").write_text("no arpa")
    with pytest.raises(UsageError, match="--dtype"):
        import_model(str(tmp_path / "text.txt"), str(tmp_path / "run"), "float32")
    with pytest.raises(UsageError, match="--dtype must be one of"):
        import_model(str(gpt2), str(tmp_path / "run"), "int8")
    with pytest.raises(UsageError, match="--format must be one of huggingface, elmo, arpa, onnx"):
        export_model(str(gpt2), str(tmp_path / "out"), "tensorflow")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for ask in (import_model, export_model):
        with pytest.raises(UsageError, match="must be new or empty"):
            ask(str(gpt2), str(tmp_path / "taken"))


def test_only_hf_names_touch_the_network_and_offline_says_so(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def snapshot(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert "model.safetensors" in allow_patterns
        assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in allow_patterns)
        return str(gpt2)

    hub.fetched.cache_clear()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert run_folder.load_run("hf://someone/gpt2@v1").folder == gpt2
    assert run_folder.task_of(Path("hf://someone/gpt2@v1")) == "text-generation"
    import_model("hf://someone/gpt2", str(tmp_path / "run"))
    assert notices[0] == "hf://someone/gpt2 is commit gpt2"
    assert asked == [("someone/gpt2", "v1"), ("someone/gpt2", "v1"), ("someone/gpt2", None)]
    monkeypatch.undo()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    hub.fetched.cache_clear()
    with pytest.raises(
        FolderError, match=r"hf://no/such: is not in the cache .* and HF_HUB_OFFLINE is set"
    ):
        run_folder.load_run("hf://no/such")
    with pytest.raises(UsageError, match="a name must be such as"):
        run_folder.load_run("hf://a b/../c")
    with pytest.raises(FolderError, match="there is no such folder"):
        run_folder.load_run("no/such")


def test_config_json_says_how_it_decodes_where_no_other_file_does(
    bart: Path, tmp_path: Path, notices: list[str]
) -> None:
    copied = shutil.copytree(bart, tmp_path / "bart")
    (copied / "generation_config.json").unlink()
    rewrite(copied / "config.json", early_stopping=True, num_beams=3, typical_p=0.5)
    import_model(str(copied), str(tmp_path / "run"))
    assert any("config.json: typical_p=0.5" in line for line in notices)
    decode = run_folder.load_run(tmp_path / "run").decode
    assert (decode.beam, decode.early_stopping) == (3, "full")


def test_what_is_not_true_of_what_is_written_is_left_out(gpt2: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(gpt2, tmp_path / "gpt2")
    rewrite(
        copied / "config.json",
        auto_map={"AutoModel": "a.B"},
        quantization_config={"bits": 8},
        _name_or_path="/home/a",
        mine=3,
    )
    export_model(str(copied), str(tmp_path / "out"))
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not content.keys() & {"auto_map", "quantization_config", "_name_or_path"}
    assert content["mine"] == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), ("[]", "must be a JSON object"), ('{"size": {"a": []}}', "")],
)
def test_a_model_of_images_without_its_preparation_leaves_no_folder(
    content: str | None, said: str, tmp_path: Path
) -> None:
    sharpened(hf.ViTForImageClassification(hf.ViTConfig(**VIT)), tmp_path / "vit")
    if content is not None:
        (tmp_path / "vit" / "preprocessor_config.json").write_text(content)
    with pytest.raises(FolderError, match=rf"preprocessor_config\.json: .*{said}"):
        import_model(str(tmp_path / "vit"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "##s", "rain", "the"]


@pytest.mark.parametrize("settings", [None, {"do_lower_case": True}])
def test_an_export_has_the_special_tokens_that_its_source_took_for_granted(
    settings: Any, tmp_path: Path
) -> None:
    sharpened(hf.BertForMaskedLM(hf.BertConfig(**{**BERT, "vocab_size": 11})), tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(WORDS))
    if settings is not None:
        (tmp_path / "bert" / "tokenizer_config.json").write_text(json.dumps(settings))
    import_model(str(tmp_path / "bert"), str(tmp_path / "run"))
    assert (
        run_folder.load_run(tmp_path / "run").tokenizer.special_ids
        == run_folder.load_run(tmp_path / "bert").tokenizer.special_ids
    )
    for source in ("bert", "run"):
        export_model(str(tmp_path / source), str(tmp_path / f"of-{source}"))
        tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / f"of-{source}")
        names = (
            tokenizer.pad_token,
            tokenizer.unk_token,
            tokenizer.cls_token,
            tokenizer.sep_token,
            tokenizer.mask_token,
        )
        assert names == tuple(WORDS[:5])
        assert tokenizer(["a dog [MASK]", "the"], padding=True).input_ids == [
            [2, 5, 6, 4, 3],
            [2, 10, 3, 0, 0],
        ]


def test_a_language_model_has_no_marks_of_an_encoder(gpt2: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(gpt2, tmp_path / "gpt2")
    (copied / "tokenizer_config.json").unlink()
    rewrite(copied / "config.json", pad_token_id=5)
    export_model(str(copied), str(tmp_path / "out"))
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.cls_token, tokenizer.sep_token) == (
        "<|endoftext|>",
    ) * 2 + (None,) * 2
    assert tokenizer.pad_token_id == 5


@pytest.mark.parametrize(
    "added", [["x"], {"4": 1}, {"a": {"content": "x"}}, {"4": {"content": 5}}, {"4": {}}]
)
def test_added_tokens_that_are_none_are_refused(added: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(
        FolderError,
        match=r"added_tokens_decoder of tokenizer_config\.json must say|must have the id 4",
    ):
        read_hub_tokenizer(tmp_path, {"model_type": "bert", "vocab_size": 11})
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": null}')
    assert read_hub_tokenizer(tmp_path, {"model_type": "bert", "vocab_size": 11}).pieces([6]) == [
        " dog"
    ]


PAIRS = [
    ("a dog runs in the rain", "ein Hund läuft im Regen"),
    ("the cat sleeps", "die Katze schläft"),
    ("rain and sun", "Sonne"),
]


def pieces_of(texts: list[str], path: Path) -> list[str]:
    """The pieces of a model of sentencepiece, trained on texts and written."""
    library: Any = importlib.import_module("sentencepiece")
    with path.open("wb") as file:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 9),
            model_writer=file,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )
    processor = library.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "marian"
    folder.mkdir()
    source, target = (
        pieces_of([pair[side] for pair in PAIRS], folder / name)
        for side, name in enumerate(("source.spm", "target.spm"))
    )
    entries = [*dict.fromkeys(["</s>", "<unk>", *source, *target, "<pad>"])]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(entries)}))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}'
    )
    pad = len(entries) - 1
    torch.manual_seed(5)
    ids = {
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": 0,
    }
    sharpened(
        hf.MarianMTModel(
            hf.MarianConfig(**{**BART, "vocab_size": pad + 1, "max_position_embeddings": 40, **ids})
        ),
        folder,
    )
    return folder


@pytest.mark.filterwarnings("ignore:.*sacremoses:UserWarning")
def test_marian_keeps_its_two_languages_on_the_way_in_and_out(marian: Path, tmp_path: Path) -> None:
    import_model(str(marian), str(tmp_path / "run"))
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    theirs = hf.AutoTokenizer.from_pretrained(marian)
    again = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(again) is type(theirs) is hf.MarianTokenizer
    for text, written in PAIRS:
        read, ids = theirs(text).input_ids, theirs(text_target=written).input_ids
        assert (again(text).input_ids, again(text_target=written).input_ids) == (read, ids)
        assert (
            again.decode(ids, skip_special_tokens=True)
            == theirs.decode(ids, skip_special_tokens=True)
            == written
        )
        for folder in (marian, tmp_path / "run", tmp_path / "out"):
            ours: Any = run_folder.load_run(folder).tokenizer
            assert [ours.encode([text])[0] + [0], ours.target.encode([written])[0] + [0]] == [
                read,
                ids,
            ]
            assert ours.decode(ids) == written
    assert {"source.spm", "target.spm", "vocab.json"} <= json.loads(
        (tmp_path / "run" / "manifest.json").read_text()
    )["files"].keys()
    (tmp_path / "run" / "target.spm").write_bytes((marian / "source.spm").read_bytes())
    with pytest.raises(FolderError, match=r"target\.spm"):
        run_folder.load_run(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:.*sacremoses:UserWarning")
def test_the_loss_and_the_looks_of_marian_are_at_what_its_target_language_spells(
    marian: Path, tmp_path: Path
) -> None:
    import_model(str(marian), str(tmp_path / "run"))
    model, tokenizer = (
        hf.MarianMTModel.from_pretrained(marian).eval(),
        hf.AutoTokenizer.from_pretrained(marian),
    )
    total = count = 0.0
    for source, target in PAIRS:
        both = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            total += float(model(**both).loss) * both["labels"].numel()
        count += both["labels"].numel()
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    )
    for folder in (marian, tmp_path / "run"):
        found = evaluate(folder, [str(tmp_path / "pairs.tsv")], {}, {"max_length": 3}).metrics
        assert found["tokens"] == count
        assert found["loss"] == pytest.approx(total / count, abs=1e-5)
        bundle = run_folder.load_run(folder)
        for source, target in PAIRS:
            seen = Translator(bundle).explain(source, target=target)
            expected = bundle.tokenizer.pieces(tokenizer(text_target=target).input_ids)
            assert seen.numbers["target"] == expected


OTHER_FORMATS = ("huggingface", "onnx", "arpa")


@pytest.mark.parametrize(
    "name",
    ["labels-bag", "labels-bert", "labels-gpt", "tags-recurrent", "patches-vit", "text-mixture"],
)
def test_a_refusal_names_no_format_that_refuses_as_well(name: str, tmp_path: Path) -> None:
    run = str(Path(__file__).parents[1] / "fixtures" / "runs" / name)
    said = []
    for form in OTHER_FORMATS:
        try:
            export_model(run, str(tmp_path / f"{form}.arpa"), form)
        except UsageError as error:
            said.append(str(error))
    assert len(said) >= 2
    for other in OTHER_FORMATS:
        if any(f"--format {other}" in one for one in said):
            export_model(run, str(tmp_path / other), other)
