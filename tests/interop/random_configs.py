"""Checkpoints with configurations drawn at random from the classes of transformers: the same logits here, or
a line that names a key.

    python -m tests.interop.random_configs 400        400 of all families, with the outcomes counted
    python -m tests.interop.random_configs 400 50 t5  from draw 50 on, of the families that are named
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from tests.interop.headed import ask_theirs as ask_head
from tests.interop.published import hf, scale_of
from torch import Tensor, nn

from seqloom.errors import FolderError
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.interop.families import FAMILIES
from seqloom.protocols import EncodedBatch
from seqloom.shapes import IGNORE

TOLERANCE = 1e-5
STEPS = 6
ACTIVATIONS = sorted(set(hf.activations.ACT2FN) - {"prelu", "xielu"})
"""Without those that have weights of their own."""
CHANGED, RARE = 0.35, 0.06
"""Share of the keys that are no sizes that get another value than the default."""
REFUSED = (
    "add_cross_attention",
    "dense_act_fn",
    "is_decoder",
    "is_gated_act",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
)
"""Keys that shut a folder out, so that they are drawn rarely."""
NOT_DRAWN = {
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "problem_type",
    "return_dict",
    "transformers_version",
}
"""Keys that say nothing, or are drawn as what they are."""


BROKEN = (ValueError, TypeError, KeyError, RuntimeError, AttributeError, IndexError)
"""What transformers raises for values that do not go together."""


class Illegal(Exception):
    """transformers itself does not take the configuration."""


class Outcome(NamedTuple):
    kind: str
    """equal, refused or said."""
    detail: str


@dataclass(frozen=True)
class Draw:
    """A configuration."""

    hub_type: str
    architecture: str
    fields: dict[str, Any]
    edits: dict[str, Any]
    """What is changed in config.json after it was saved; "gone" takes a key out."""


def sizes(hub_type: str, chance: random.Random) -> dict[str, Any]:
    """Tiny ones that fit together."""
    heads = chance.randint(1, 3)
    width = heads * chance.choice([2, 4, 6])
    layers, inner = chance.randint(1, 3), chance.randint(3, 12)
    vocabulary, positions = chance.randint(24, 40), chance.randint(STEPS + 6, 40)
    if hub_type in ("openai-gpt", "gpt2"):
        found: dict[str, Any] = {
            "n_embd": width,
            "n_head": heads,
            "n_layer": layers,
            "n_positions": positions,
        }
        if hub_type == "gpt2":
            found["n_inner"] = chance.choice([None, inner])
    elif hub_type == "t5":
        found = {
            "d_model": width,
            "num_heads": heads,
            "d_kv": chance.randint(2, 6),
            "d_ff": inner,
            "num_layers": layers,
            "num_decoder_layers": chance.choice([None, 1, 3]),
            "relative_attention_num_buckets": chance.choice([4, 6, 8, 12, 32, 32]),
            "relative_attention_max_distance": chance.choice([5, 9, 20, 128, 128]),
        }
    elif hub_type in ("bart", "marian"):
        found = {
            "d_model": width,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": chance.choice([heads, 1]),
            "encoder_layers": layers,
            "decoder_layers": chance.randint(1, 3),
            "encoder_ffn_dim": inner,
            "decoder_ffn_dim": chance.randint(3, 12),
            "max_position_embeddings": positions,
        }
        if hub_type == "marian":
            found["decoder_vocab_size"] = chance.choice([None, None, None, vocabulary + 1])
    else:
        found = {
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "intermediate_size": inner,
        }
    if hub_type in ("bert", "roberta", "electra"):
        found |= {"max_position_embeddings": positions, "type_vocab_size": chance.randint(1, 3)}
    if hub_type == "electra":
        found["embedding_size"] = chance.choice([width, 5])
    if hub_type == "vit":
        image = chance.choice([8, 8, 12, [8, 8], [8, 12]])
        return found | {
            "image_size": image,
            "patch_size": chance.choice([2, 4, 4, [4, 4]]),
            "num_channels": chance.randint(1, 4),
        }
    return found | {"vocab_size": vocabulary}


def other_value(key: str, default: Any, vocabulary: int, chance: random.Random) -> Any:
    """A legal value of a key that is no size."""
    choices: dict[str, list[Any]] = {
        "dense_act_fn": ACTIVATIONS,
        "afn": ["gelu", "relu", "silu", "swish"],
        "feed_forward_proj": [f"{gate}{name}" for gate in ("", "gated-") for name in ACTIVATIONS],
        "summary_type": ["first", "last", "mean", "cls_index"],
        "summary_activation": ["gelu", "tanh", "relu"],
        "chunk_size_feed_forward": [0, 1, 2],
        "pooler_output_size": [None, 7],
        "encoder_stride": [4, 16],
        "layer_norm_eps": [1e-12, 1e-6, 1e-5, 1e-2],
        "layer_norm_epsilon": [1e-12, 1e-6, 1e-5, 1e-2],
        "classifier_dropout": [0.0, 0.2],
        "initializer_factor": [0.5, 2.0],
    }
    if key in choices:
        return chance.choice(choices[key])
    if key in ("hidden_act", "activation_function", "pooler_act"):
        usual = ["gelu", "gelu_new", "relu", "silu", "tanh", "gelu_pytorch_tanh"]
        return chance.choice(usual * 3 + ACTIVATIONS)
    if key.endswith("_token_id"):
        return chance.randrange(vocabulary)
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return round(chance.uniform(0.0, 0.4), 3)
    raise AssertionError(f"the values of {key} must be drawn in some way")


def draw(hub_type: str, seed: int) -> Draw:
    chance = random.Random(f"{hub_type} {seed}")
    config_class = hf.CONFIG_MAPPING[hub_type]
    fields = sizes(hub_type, chance)
    for key, default in config_class().to_dict().items():
        share = RARE if key in REFUSED else CHANGED
        vocabulary = fields.get("vocab_size", 9)
        beyond = key == "pad_token_id" and type(default) is int and default >= vocabulary
        if key not in NOT_DRAWN and key not in fields and (beyond or chance.random() < share):
            fields[key] = other_value(key, default, vocabulary, chance)
    labels = chance.randint(1, 4)
    fields["id2label"] = {number: f"label {number}" for number in range(labels)}
    fields["label2id"] = {name: number for number, name in fields["id2label"].items()}
    problems = [None, None, "regression", "multi_label_classification"]
    if labels > 1:
        problems.append("single_label_classification")
    fields["problem_type"] = chance.choice(problems)
    edits: dict[str, Any] = {}
    for alias, key in config_class.attribute_map.items():
        if key in fields and chance.random() < 0.25:
            edits |= {alias: fields[key], key: "gone"}
    if chance.random() < 0.1:
        edits["dtype"] = chance.choice(["float16", "bfloat16", "float32", "float64"])
    if chance.random() < 0.1:
        edits["a_key_of_mine"] = 3
    if chance.random() < 0.1:
        edits["output_attentions"] = True
    architecture = chance.choice(list(FAMILIES[hub_type].architectures))
    return Draw(hub_type, architecture, fields, edits)


def published(made: Draw, seed: int, folder: Path) -> Any:
    """The model as `transformers` opens it from the folder into which it is saved. Raises Illegal."""
    torch.manual_seed(seed)
    kind = getattr(hf, made.architecture)
    try:
        model = kind(hf.CONFIG_MAPPING[made.hub_type](**made.fields)).eval()
        for name, parameter in model.named_parameters():
            if not (made.hub_type == "marian" and name.endswith("embed_positions.weight")):
                nn.init.normal_(parameter, std=0.4)
        model.save_pretrained(folder)
        path = folder / "config.json"
        content = json.loads(path.read_text()) | made.edits
        path.write_text(
            json.dumps({key: value for key, value in content.items() if value != "gone"})
        )
        return kind.from_pretrained(folder).eval()
    except (*BROKEN, AssertionError, StrictDataclassError) as error:
        raise Illegal(repr(error)) from None


def suffix_of(made: Draw) -> str:
    """The kind of head, as `headed.py` names it; nothing where there is none."""
    for part, suffix in (
        ("TokenClassification", "tags"),
        ("QuestionAnswering", "span"),
        ("MultipleChoice", "choice"),
    ):
        if made.architecture.endswith(part):
            return suffix
    if not made.architecture.endswith("SequenceClassification"):
        return ""
    problem = made.fields["problem_type"]
    if problem == "multi_label_classification":
        return "several"
    single = len(made.fields["id2label"]) == 1 and problem is None
    return "number" if single or problem == "regression" else "labels"


def inputs(made: Draw, rows: int) -> tuple[Tensor, Tensor]:
    """Ids of texts and of targets, none of them special."""
    special = {value for key, value in made.fields.items() if key.endswith("_token_id")}
    special |= {
        value
        for key, value in hf.CONFIG_MAPPING[made.hub_type]().to_dict().items()
        if key.endswith("_token_id")
    }
    usual = torch.tensor([i for i in range(made.fields["vocab_size"]) if i not in special])
    return tuple(usual[torch.randint(len(usual), (rows, STEPS))] for _ in range(2))  # type: ignore[return-value]


@torch.no_grad()
def both_logits(made: Draw, theirs: Any, ours: Any) -> tuple[Tensor, Tensor]:
    """Theirs and ours."""
    suffix = suffix_of(made)
    if made.hub_type == "vit":
        side = made.fields["image_size"]
        height, width = (side, side) if isinstance(side, int) else side
        images = torch.randn(2, made.fields["num_channels"], height, width)
        return theirs(images).logits, ours(images)
    rows = 2 if suffix == "choice" else 1
    tokens, targets = inputs(made, rows)
    segments = torch.zeros_like(tokens)
    if made.hub_type in ("bert", "electra") and made.fields["type_vocab_size"] > 1:
        segments = tokens % 2
    if suffix:
        places = torch.arange(STEPS).expand(rows, STEPS)
        if suffix not in ("tags", "span"):
            places = tokens.new_zeros(rows, 0)
        owner = torch.zeros(rows, dtype=torch.long)
        none = tokens.new_zeros(rows, STEPS, 0)
        asked = EncodedBatch(tokens, segments, none, owner, places, torch.full((1,), IGNORE))
        if suffix == "choice":
            given = {"input_ids": tokens[None], "token_type_ids": segments[None]}
            return theirs(**given).logits, ours(asked)
        name = {"openai-gpt": "gpt1"}.get(made.hub_type, made.hub_type)
        return ask_head(f"{name}-{suffix}", theirs, asked), ours(asked)
    given = {"input_ids": tokens}
    if made.hub_type in ("bert", "electra"):
        given["token_type_ids"] = segments
    if made.hub_type in ("t5", "bart", "marian") and made.architecture != "T5EncoderModel":
        out = theirs(**given, decoder_input_ids=targets)
        state = ours.encode(tokens)
        if made.architecture.endswith(("BartModel", "MarianModel")):
            return out.last_hidden_state, ours.read(targets, state)[0]
        return out.logits, ours(targets, state)[0]
    out = theirs(**given)
    logits = out.get("logits", out.get("prediction_logits"))
    if logits is None:
        logits = out.last_hidden_state
    if made.hub_type in ("openai-gpt", "gpt2"):
        return logits, (ours if "LMHead" in made.architecture else ours.read)(tokens)[0]
    mask = torch.ones_like(tokens, dtype=torch.bool)
    if made.hub_type == "t5":
        return logits, ours.encoded(tokens)
    hidden = ours(tokens, mask, segments if made.hub_type != "roberta" else None)
    return logits, hidden if ours.head is None else ours.logits(hidden)


def outcome(hub_type: str, seed: int) -> Outcome:
    """Of one draw. Raises Illegal where transformers does not take it, AssertionError where ours is wrong
    without a word."""
    made = draw(hub_type, seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        theirs = published(made, seed, folder)
        keys = {*json.loads((folder / "config.json").read_text()), "num_labels"}
        refusal = ""
        try:
            found = read_checkpoint(folder)
        except FolderError as error:
            refusal = str(error)
        if refusal:
            _, _, message = refusal.partition("config.json: ")
            assert any(key in message for key in keys), f"refused without a key: {refusal}"
            return Outcome("refused", message)
        try:
            expected, ours = both_logits(made, theirs.float(), found.model.float())
        except BROKEN as error:
            raise Illegal(f"in use: {error!r}") from None
        if not bool(expected.isfinite().all()):
            raise Illegal("its numbers are not finite")
        assert ours.shape == expected.shape, (ours.shape, expected.shape)
        distance = float((ours - expected).abs().max()) / scale_of(expected)
        if distance <= TOLERANCE:
            return Outcome("equal", "")
        said = [note for note in found.notes if any(key in note for key in keys & {"dtype"})]
        assert said, f"differs by {distance:.1e} without a word; notices: {found.notes}; {made}"
        return Outcome("said", said[0])


def campaign(count: int, first: int, hub_types: list[str]) -> int:
    """Prints each failure and the counts; returns how many failed."""
    counts: Counter[tuple[str, str]] = Counter()
    refusals: Counter[str] = Counter()
    seed = dict.fromkeys(hub_types, first)
    done = failed = 0
    while done < count:
        hub_type = hub_types[done % len(hub_types)]
        try:
            kind, detail = outcome(hub_type, seed[hub_type])
        except Illegal as error:
            counts[hub_type, "illegal"] += 1
            refusals[f"illegal {hub_type}: {str(error)[:90]}"] += 1
            seed[hub_type] += 1
            continue
        except AssertionError as error:
            kind, detail, failed = "FAILED", "", failed + 1
            print(f"{hub_type} {seed[hub_type]}: {str(error)[:700]}", flush=True)
        counts[hub_type, kind] += 1
        if detail:
            refusals[f"{kind} {hub_type}: {detail[:90]}"] += 1
        seed[hub_type] += 1
        done += 1
    for (hub_type, kind), number in sorted(counts.items()):
        print(f"{hub_type:12} {kind:8} {number}")
    for reason, number in refusals.most_common(60):
        print(f"{number:4} {reason}")
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    total, begin = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(bool(campaign(total, begin, sys.argv[3:] or list(FAMILIES))))
