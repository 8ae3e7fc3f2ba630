"""How an exported model writes texts: its special ids and its `generation_config.json`, with notices about
what transformers does otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from seqloom.interop.config_options import Fields
from seqloom.interop.export import Target
from seqloom.interop.families.family import SUPPRESSED
from seqloom.interop.hub_origin import GENERATING, HubOrigin
from seqloom.interop.written_generation import WrittenGeneration
from seqloom.json_values import JsonObject, as_whole_number
from seqloom.registry import hub_task
from seqloom.runs import run_folder

ENCODER_DECODERS = ("transformer", "t5")


@final
class ExportedDecoding(NamedTuple):
    """What an export says about decoding."""

    ids: Fields
    """Keys such as eos_token_id, for config.json."""
    content: JsonObject | None
    """Of generation_config.json; None if there is none."""
    notices: list[str]


def exported_decoding(
    run: run_folder.LoadedRun, origin: HubOrigin | None, target: Target, *, trained: bool
) -> ExportedDecoding:
    """Of a model of texts. `origin`: the checkpoint that it came from, if any; `trained`: whether it was
    trained here since."""
    written = _written(run, origin, target)
    ids: Fields = {}
    if origin is None:
        ids = {**written.ids(), **({"is_encoder_decoder": True} if written.encodes else {})}
    if hub_task(run.task) not in GENERATING:
        return ExportedDecoding(ids, None, [])
    if origin is None or trained or not _as_it_came(run, origin):
        return ExportedDecoding(ids, written.content(), written.notices())
    return ExportedDecoding(ids, origin.generation, _begin_notices(run))


def _written(
    run: run_folder.LoadedRun, origin: HubOrigin | None, target: Target
) -> WrittenGeneration:
    special_ids, pad = run.tokenizer.special_ids, run.tokenizer.special_ids.pad
    # the <pad> of a checkpoint is used for something else too, so it is none here
    known = None if origin is None else as_whole_number(origin.ids().get("pad_token_id"))
    suppressed: Sequence[int] = vars(target.encoder_config).get(SUPPRESSED, ())
    limits = map(
        as_whole_number, map(target.content.get, ("n_positions", "max_position_embeddings"))
    )
    layers = [target.content.get(key) for key in ("num_layers", "num_decoder_layers")]
    return WrittenGeneration(
        decode=run.decode,
        special_ids=special_ids,
        pad=pad if pad >= 0 else known,
        encodes=run.model_type in ENCODER_DECODERS,
        positions=next((limit for limit in limits if limit is not None), None),
        layers=layers,
        renormalised=bool(suppressed) and target.family.names.output_bias is None,
        may_be_unknown=special_ids.unk is not None and special_ids.unk not in suppressed,
    )


def _as_it_came(run: run_folder.LoadedRun, origin: HubOrigin) -> bool:
    """Whether it has the settings of its checkpoint."""
    usual = run_folder.decode_defaults(run.task)
    return origin.decoding(hub_task(run.task), usual, run.tokenizer)[0] == run.decode


def _begin_notices(run: run_folder.LoadedRun) -> list[str]:
    bos = run.tokenizer.special_ids.bos
    if run.task != "text-generation" or run.tokenizer.template.prefix == bos or not bos:
        return []
    name = run.tokenizer.pieces(bos)[0]
    notice = (
        f"seqloom reads {name} before a prompt, and the tokenizer of this model puts none there in"
        f" transformers: texts are the same where the prompt begins with {name}"
    )
    return [notice]
