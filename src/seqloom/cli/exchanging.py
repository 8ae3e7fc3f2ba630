"""Verbs that take models in and out: import, export."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from seqloom.cli.options import Flag
from seqloom.cli.terminal import put_json, put_table


def import_model(place: str, folder: str, /, *, dtype: str | None = None, json: Flag = False) -> None:
    """Make a run folder of a Hugging Face directory, of a name of the hub, or of an n-gram model in an ARPA
    file.

    Args:
        place: A directory with config.json and model.safetensors; hf://NAME or hf://NAME@REVISION, which is
            fetched; or an ARPA file, also .gz.
        folder: The new run folder.
        dtype: float32, float64, bfloat16 or float16: what the weights become; by default 16 bits become
            float32, others stay.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.exchange import import_model as run_import

    _put(folder, run_import(place, folder, dtype), json)


def export(
    folder: str,
    out: str,
    /,
    *,
    form: Annotated[str | None, Parameter(name="--format")] = None,
    shard_size: int | None = None,
    json: Flag = False,
) -> None:
    """Write a model as a Hugging Face directory, which transformers opens; an n-gram model as an ARPA file;
    or as ONNX.

    Args:
        folder: A run folder.
        out: The new directory; of an n-gram model the new file, .arpa or .gz.
        form: huggingface, arpa (which KenLM, SRILM and speech recognisers read) or onnx; by default arpa for
            an n-gram model.
        shard_size: Of huggingface: the most MiB of weights in one file; by default all are in one.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.exchange import export_model

    _put(out, export_model(folder, out, form, shard_size), json)


def _put(where: str, result: dict[str, Any], json: bool) -> None:
    if json:
        put_json(result)
    elif "ngrams" in result:
        put_table(
            where, [(order, f"{size:,}") for order, size in result["ngrams"].items()], ("order", "n-grams")
        )
    else:
        shown = {key: value for key, value in result.items() if key not in ("output", "notes")}
        put_table(where, [(key, _text(value)) for key, value in shown.items()], ("", ""))


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


VERBS = (export,)
