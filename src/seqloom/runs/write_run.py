"""The run folder of a model that was not trained by steps: mixed, or read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from seqloom import files, manifest
from seqloom.config import RunConfig
from seqloom.interop.hub_origin import HubOrigin
from seqloom.json_values import JsonObject
from seqloom.protocols import StoredTokenizer
from seqloom.runs import run_folder
from seqloom.runs.model_card import write_card
from seqloom.runs.unfinished_run import begin_run
from seqloom.stored_weight import StoredWeight
from seqloom.training import metrics_log
from seqloom.training.checkpoints import TrainerState, checkpoint_path, save_checkpoint


def write_finished_run(
    folder: Path,
    run: RunConfig,
    model: nn.Module,
    tokenizer: StoredTokenizer | None,
    used: Sequence[JsonObject],
    metrics: dict[str, float] | None,
    hub: HubOrigin | None = None,
) -> None:
    """Writes all of a finished folder, which will be at `run.output_dir`; `used` are the fingerprints of the
    files that the model was made of.
    metrics: None if nothing is measured. `hub`: where an imported model comes from."""
    state = TrainerState(step=1, total_steps=1, best_step=1, stopped="max_steps")
    begin_run(folder, run)
    files.write_json(folder / run_folder.DATA, {"files": used})
    placed = (run_folder.DATA, run_folder.PREPROCESSOR)
    manifest.add(folder, *(name for name in placed if files.is_there(folder / name)))
    run_folder.write_model_files(
        folder, run.task, run.model["name"], model.config, tokenizer, run.decode, hub
    )
    stored = [weight for weight in model.parameters() if isinstance(weight, StoredWeight)]
    if stored:
        path = folder / run_folder.CONFIG
        files.write_json(
            path, files.read_json_object(path) | {run_folder.STORAGE: stored[0].stored_in}
        )
        manifest.add(folder, run_folder.CONFIG)
    if metrics is not None:
        metrics_log.append(
            folder, {"step": 1, **{f"validation_{key}": value for key, value in metrics.items()}}
        )
    save_checkpoint(folder, model, None, state)
    write_card(folder, run, state, metrics or {}, Path(run.output_dir))
    run_folder.seal(folder, checkpoint_path(folder, 1))
