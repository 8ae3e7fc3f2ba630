"""A run folder whose weights are in fewer bits: smaller on the disk and in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seqloom import files
from seqloom.config import DataConfig, RunConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.errors import UsageError, printable
from seqloom.models.compiled import CompiledModel
from seqloom.runs import run_folder
from seqloom.runs.quantised_weights import COMPILED, store
from seqloom.runs.settings import run_config_in
from seqloom.runs.write_run import write_finished_run
from seqloom.stored_weight import DTYPES
from seqloom.training.checkpoints import WEIGHTS


def export_stored(folder: str, out: str, weights: str) -> dict[str, object]:
    """Writes the model of a folder as a run folder with its weights in this type; returns what was written.
    Raises UsageError if they cannot be, or where the output is there already."""
    if weights not in DTYPES:
        raise UsageError(f"--weights must be int8 or bfloat16, but is {printable(weights)}")
    run_folder.require_whole_model(folder, "weights are rounded once")
    storage, run = weights, run_folder.load_run(folder, "cpu")
    if not isinstance(run.model, CompiledModel):
        raise UsageError(
            f"--weights is for {', '.join(COMPILED)}, but this is {run.model_type}; leave it out"
        )
    decode = run.decode_settings({"weights": storage})
    store(run.model, storage)
    config = replace(_config(run), output_dir=out, decode=decode)
    used, origin = [fingerprint(str(run.weights))], run_folder.origin_of(run.folder)
    with files.atomic_folder(Path(out), "an exported model") as temporary:
        write_finished_run(temporary, config, run.model, run.tokenizer, used, None, origin)
        size = (temporary / WEIGHTS).stat().st_size
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    return {"output": out, "weights": weights, "parameters": parameters, "bytes of weights": size}


def _config(run: run_folder.LoadedRun) -> RunConfig:
    """That of the training; of a checkpoint of others what is known."""
    if files.is_there(run.folder / run_folder.RUN):
        return run_config_in(run.folder)
    return RunConfig(
        task=run.task,
        output_dir="",
        model={"name": run.model_type, "size": "small"},
        data=DataConfig(train=(str(run.folder.resolve()),)),
    )
