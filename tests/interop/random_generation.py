"""Generation configs drawn at random: the texts of `generate` of transformers through the command line here,
or a notice that names a setting.

    python -m tests.interop.random_generation 200       200 of each family that writes texts
    python -m tests.interop.random_generation 200 50 t5 from draw 50 on, of the families that are named
"""

from __future__ import annotations

import importlib
import io
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from tests.interop.published import hf
from tests.interop.random_configs import BROKEN, Illegal, Outcome
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from seqloom import cli
from seqloom.interop.generation_config import GENERATION_KEYS
from seqloom.runs.run_folder import load_run
from seqloom.tasks.language_modeling.generate import TextGenerator
from seqloom.tasks.translation.translate import decode_texts

FAMILIES = ("openai-gpt", "gpt2", "t5", "bart", "marian")
LANGUAGE_MODELS = ("openai-gpt", "gpt2")
TEXTS = ("the king sees a dog", "at night", "my old friend calls the red fox")
CORPUS = [
    f"the {adjective} {noun} {verb} {place} ."
    for adjective in ("old", "red", "small", "my")
    for noun in ("king", "fox", "friend", "dog", "queen")
    for verb in ("sees", "calls", "hears")
    for place in ("at night", "in the rain", "a bird")
]
SPECIAL = {
    "openai-gpt": ["<unk>"],
    "gpt2": ["<|endoftext|>"],
    "t5": ["<pad>", "</s>", "<unk>"],
    "bart": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
}
IDS: dict[str, dict[str, int]] = {
    "openai-gpt": {},
    "gpt2": {"bos_token_id": 0, "eos_token_id": 0},
    "t5": {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    "bart": {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
}
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 128},
    "t5": {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    "bart": {
        "d_model": 24,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_position_embeddings": 128,
        "forced_eos_token_id": None,
    },
}
LAST_NORM = {
    "gpt2": "transformer.ln_f.weight",
    "t5": "decoder.final_layer_norm.weight",
    "bart": "model.decoder.layers.1.final_layer_norm.weight",
    "marian": "model.decoder.layers.1.final_layer_norm.weight",
}
MODELS = 3
"""Random models of a family."""


class Specimen(NamedTuple):
    """A tiny random model that ends its texts now and then."""

    folder: Path
    tokenizer: Any
    """Of transformers."""
    ids: dict[str, int]
    forbidden: frozenset[int]
    """The ids that are never written here."""


def byte_pairs(family: str, folder: Path) -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL[family],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    roles = {
        "openai-gpt": {"unk": "<unk>"},
        "gpt2": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
        "t5": {"eos": "</s>", "pad": "<pad>", "unk": "<unk>"},
        "bart": {
            "bos": "<s>",
            "cls": "<s>",
            "eos": "</s>",
            "sep": "</s>",
            "pad": "<pad>",
            "unk": "<unk>",
            "mask": "<mask>",
        },
    }[family]
    if family == "bart":
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    if family == "t5":
        made.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
        )
    marks = {f"{role}_token": token for role, token in roles.items()}
    found = hf.PreTrainedTokenizerFast(tokenizer_object=made, **marks)
    found.save_pretrained(folder)
    return found


def pieces(folder: Path) -> Any:
    """A MarianTokenizer."""
    content = io.BytesIO()
    importlib.import_module("sentencepiece").SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=content,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        pad_id=-1,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
    )
    processor = importlib.import_module("sentencepiece").SentencePieceProcessor(
        model_proto=content.getvalue()
    )
    size = processor.get_piece_size()
    vocabulary = {processor.id_to_piece(i): i for i in range(size)} | {"<pad>": size}
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(content.getvalue())
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    with warnings.catch_warnings():
        # sacremoses is not there
        warnings.simplefilter("ignore")
        return hf.MarianTokenizer.from_pretrained(folder)


@cache
def specimen(family: str, seed: int) -> Specimen:
    folder = Path(tempfile.mkdtemp())
    tokenizer = pieces(folder) if family == "marian" else byte_pairs(family, folder)
    torch.manual_seed(seed)
    if family == "marian":
        size = len(tokenizer.get_vocab())
        pad = size - 1
        ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
        model = hf.MarianMTModel(hf.MarianConfig(vocab_size=size, **SIZES["bart"], **ids))
    else:
        size, ids = len(tokenizer), IDS[family]
        kinds = {
            "openai-gpt": (hf.OpenAIGPTLMHeadModel, hf.OpenAIGPTConfig, "gpt"),
            "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, "gpt"),
            "t5": (hf.T5ForConditionalGeneration, hf.T5Config, "t5"),
            "bart": (hf.BartForConditionalGeneration, hf.BartConfig, "bart"),
        }
        kind, config, sizes = kinds[family]
        model = kind(config(vocab_size=size, **SIZES[sizes], **ids))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not (family == "marian" and "embed_positions" in name):
            nn.init.normal_(parameter, std=0.35)
    end = ids.get("eos_token_id")
    if family in LAST_NORM:
        nn.init.normal_(model.get_parameter(LAST_NORM[family]), std=3.5)
    if end is not None:
        with torch.no_grad():
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias[0, end] = 9.0
            else:
                model.get_input_embeddings().weight[end] *= 1.6
    model.eval().save_pretrained(folder)
    never = load_run(folder).tokenizer.special_ids.forbidden
    return Specimen(folder, tokenizer, ids, frozenset(never))


def draw(family: str, seed: int) -> tuple[dict[str, Any], bool]:
    """Settings of decoding, and whether they stand in config.json."""
    chance = random.Random(f"{family} {seed}")
    made = specimen(family, seed % MODELS)
    size = len(made.tokenizer)
    end = made.ids.get("eos_token_id")
    settings: dict[str, Any] = {}

    def some(key: str, share: float, *values: Any) -> None:
        if chance.random() < share:
            settings[key] = chance.choice(values)

    some("num_beams", 0.65, 1, 2, 4, 4)
    some("do_sample", 0.35, False, False, True)
    some("early_stopping", 0.5, True, False, "never")
    some("length_penalty", 0.4, 0.0, 0.6, 1.0, 2.0, -1.0)
    some("max_new_tokens", 0.5, 1, 3, 8, 12)
    some("max_length", 0.35, 2, 6, 10, 25)
    some("min_new_tokens", 0.2, 0, 2, 5)
    some("min_length", 0.2, 0, 3, 8)
    some("repetition_penalty", 0.12, 1.0, 1.3, 0.8)
    some("no_repeat_ngram_size", 0.25, 0, 1, 2, 3)
    some("num_return_sequences", 0.12, 1, 2)
    some("top_k", 0.2, 0, 1, 5, 50)
    some("top_p", 0.2, 1.0, 0.9, 0.4)
    some("temperature", 0.2, 0.7, 1.0, 1.5)
    some("min_p", 0.1, 0.05, 0.2)
    for key, value in (
        ("typical_p", 0.7),
        ("epsilon_cutoff", 0.002),
        ("eta_cutoff", 0.002),
        ("top_h", 0.5),
        ("encoder_no_repeat_ngram_size", 2),
        ("encoder_repetition_penalty", 1.3),
        ("bad_words_ids", [[chance.randrange(3, size)], [size - 3, size - 4]]),
        ("suppress_tokens", [chance.randrange(3, size)]),
        ("begin_suppress_tokens", [chance.randrange(3, size)]),
        ("renormalize_logits", True),
        ("guidance_scale", 2.0),
        ("exponential_decay_length_penalty", [2, 1.5]),
        ("sequence_bias", [[[chance.randrange(3, size)], 4.0]]),
        ("remove_invalid_values", True),
        ("use_cache", False),
        ("output_scores", True),
        ("a_setting_of_mine", 3),
        ("stop_strings", ["x"]),
        ("eos_token_id", [7] if end is None else [end, 7]),
        ("forced_bos_token_id", chance.choice([0, 9])),
        ("penalty_alpha", 0.6),
        ("pad_token_id", None),
    ):
        share = 0.2 if key == "forced_bos_token_id" and family not in LANGUAGE_MODELS else 0.04
        some(key, share, value)
    if end is not None:
        some("forced_eos_token_id", 0.3, end, end, [end], 7)
    ids: dict[str, Any] = dict(made.ids)
    if chance.random() < 0.06 and "decoder_start_token_id" in ids:
        ids.pop(chance.choice(sorted(ids)))
    return {**ids, **settings}, chance.random() < 0.1


def written_by_theirs(
    family: str, made: Specimen, model: Any
) -> tuple[list[list[str]], list[list[Tensor]]]:
    """The texts of each input, and the scores of its first steps. Raises Illegal."""
    never = [*made.forbidden, *(model.generation_config.suppress_tokens or [])]
    never = [i for i in never if i != model.generation_config.forced_bos_token_id]
    texts: list[list[str]] = []
    scores: list[list[Tensor]] = []
    for text in TEXTS:
        begin = [0] if family == "gpt2" else []
        inputs = torch.tensor([begin + made.tokenizer(text)["input_ids"]])
        torch.manual_seed(0)
        try:
            with torch.inference_mode():
                found = model.generate(
                    inputs,
                    attention_mask=torch.ones_like(inputs),
                    return_dict_in_generate=True,
                    output_scores=True,
                    **({"suppress_tokens": never} if never else {}),
                )
        except (*BROKEN, OSError, ImportError, NotImplementedError) as error:
            raise Illegal(repr(error)) from None
        first = inputs.shape[1] if family in LANGUAGE_MODELS else 1
        texts.append(
            [
                made.tokenizer.decode(row[first:], skip_special_tokens=True)
                for row in found.sequences.tolist()
            ]
        )
        scores.append([step[0] for step in found.scores])
    return texts, scores


def written_by_ours(family: str, folder: Path) -> tuple[list[list[str]], str]:
    """The texts of each input through the command line, and what it says beside."""
    asked = folder / "asked.txt"
    asked.write_text("".join(f"{text}\n" for text in TEXTS))
    verb = "generate" if family in LANGUAGE_MODELS else "predict"
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main([verb, str(folder), str(asked), "--json"])
        except SystemExit as end:
            code = end.code
    assert code == 0, f"refused: {err.getvalue()}"
    out.flush()
    rows = [json.loads(line) for line in out.buffer.getvalue().decode().splitlines()]
    if verb == "predict":
        return [[one["text"] for one in row["outputs"]] for row in rows], err.getvalue()
    count = len(rows) // len(TEXTS)
    texts = [row["text"] for row in rows]
    return [texts[at : at + count] for at in range(0, len(texts), count)], err.getvalue()


def first_distribution(family: str, folder: Path) -> list[Tensor]:
    """Of the first token that is drawn for each input."""
    run = load_run(folder)
    seen: list[Tensor] = []
    for text in TEXTS:
        steps: list[Tensor] = []
        watch = lambda step, steps=steps: steps.append(step.processed[0])  # noqa: E731
        if family in LANGUAGE_MODELS:
            TextGenerator(run).generate([text], watch=watch)
        else:
            decode_texts(run.model, run.tokenizer, [text], run.decode, watch)
        seen.append(steps[0].softmax(-1))
    return seen


def named(settings: dict[str, Any], said: str) -> list[str]:
    """The lines that name a setting that was drawn."""
    lines = [line for line in said.splitlines() if "has no max_length" not in line]
    usual = {key for key in settings if not key.endswith("_token_id")} | {
        key for key in GENERATION_KEYS if key.endswith("_token_id")
    }
    return [line for line in lines if any(key in line for key in usual)]


def outcome(family: str, seed: int) -> Outcome:
    """Of one draw. Raises Illegal where transformers does not take it, AssertionError where ours is another
    text without a word."""
    made = specimen(family, seed % MODELS)
    settings, in_config = draw(family, seed)
    path = made.folder / "generation_config.json"
    config = made.folder / "config.json"
    kept = config.read_text()
    path.unlink(missing_ok=True)
    try:
        if in_config:
            config.write_text(json.dumps(json.loads(kept) | settings))
        else:
            path.write_text(json.dumps(settings))
        kind = getattr(hf, json.loads(kept)["architectures"][0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = kind.from_pretrained(made.folder).eval()
            except (*BROKEN, StrictDataclassError) as error:
                raise Illegal(repr(error)) from None
            expected, scores = written_by_theirs(family, made, model)
        texts, said = written_by_ours(family, made.folder)
        if settings.get("do_sample") and settings.get("num_beams", 1) == 1:
            ours = first_distribution(family, made.folder)
            step = 1 if model.generation_config.forced_bos_token_id is not None else 0
            if family in LANGUAGE_MODELS:
                step = 0
            distances = [
                float((one - steps[step].softmax(-1)).abs().max()) if step < len(steps) else 0.0
                for one, steps in zip(ours, scores, strict=True)
            ]
            same = max(distances) < 1e-4
        else:
            same = [[text.strip() for text in row] for row in texts] == [
                [text.strip() for text in row] for row in expected
            ]
        if same:
            return Outcome("equal", "")
        lines = named(settings, said)
        assert lines, f"{settings}, theirs {expected}, ours {texts}, said {said!r}"
        return Outcome("said", lines[0])
    finally:
        config.write_text(kept)


def campaign(count: int, first: int, families: list[str]) -> int:
    """Prints each failure and the counts; returns how many failed."""
    counts: Counter[tuple[str, str]] = Counter()
    details: Counter[str] = Counter()
    failed = 0
    for family in families:
        seed = first
        while sum(counts[family, kind] for kind in ("equal", "said", "FAILED")) < count:
            try:
                kind, detail = outcome(family, seed)
            except Illegal as error:
                kind, detail = "illegal", str(error)
            except AssertionError as error:
                kind, detail, failed = "FAILED", "", failed + 1
                print(f"{family} {seed}: {str(error)[:900]}", flush=True)
            counts[family, kind] += 1
            if detail:
                details[f"{kind} {family}: {detail[:110]}"] += 1
            seed += 1
        print(
            {kind: number for (of, kind), number in sorted(counts.items()) if of == family},
            family,
            flush=True,
        )
    for reason, number in details.most_common(60):
        print(f"{number:4} {reason}")
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    total, begin = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(bool(campaign(total, begin, sys.argv[3:] or list(FAMILIES))))
