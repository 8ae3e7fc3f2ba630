"""From text files to a run folder: read, tokenise, train, seal."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import RunConfig
from seqloom.errors import DataError, FolderError, UsageError, printable
from seqloom.interop.hub_origin import TOKENIZER_CONFIG
from seqloom.layers.recurrent.stack import runs_compiled_loops
from seqloom.models import model_family
from seqloom.native.library import library, missing
from seqloom.protocols import FittedModel, Objective, Rows, State, TrainingData
from seqloom.registry import task_to_train
from seqloom.run_file import run_file_text
from seqloom.runs import run_folder
from seqloom.runs.model_card import write_card
from seqloom.runs.settings import (
    STANDARD_INPUT,
    check_unchanged,
    fixed_settings,
    keep_standard_input,
    model_fields,
    read_resumed,
)
from seqloom.runs.tensorboard import open_board
from seqloom.tasks.settings import resolve
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.text.hub.tokenizer_files import tokenizer_file_names
from seqloom.text.special_tokens import BOS
from seqloom.training import metrics_log
from seqloom.training.checkpoints import (
    OPTIMIZER,
    WEIGHTS,
    TrainerState,
    checkpoint_path,
    checkpoint_step,
    load_model_tensors,
    load_optimizer_tensors,
    newest_checkpoint,
    prune_checkpoints,
    read_state,
    read_stream_states,
    save_checkpoint,
)
from seqloom.training.distributed import World, joined_world
from seqloom.training.loop import Progress, Trainer
from seqloom.training.objectives import chosen_objective
from seqloom.training.optimisation import make_optimizer
from seqloom.training.stream_states import stream_states_of

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class TrainResult:
    """How a training ended."""

    folder: Path
    step: int
    best_step: int | None
    stopped: str
    """max_steps, patience, the name of the signal that asked to stop, or finished: it was over before,
    nothing was done."""
    metrics: dict[str, float]
    """Of the best checkpoint on the validation data."""
    first: bool = True
    """Whether this is the first of the workers, which speaks for all."""


def train(
    task: str | None = None,
    data: Sequence[str] = (),
    *,
    output_dir: str | Path | None = None,
    model: str | None = None,
    validation: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    resume: str | Path | None = None,
    start: str | Path | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> TrainResult:
    """Trains a model into a new run folder, or goes on with one that was stopped (`resume`).

    `start` is a folder, or a name of the hub, whose weights and tokenizer the model begins with. `settings`
    are `key=value` as after `--set`; `config` is a run file whose values they change. Raises UsageError,
    DataError, FolderError and TrainingError, each with one line for the user.
    """
    if resume is not None:
        if task or data or output_dir or model or validation or settings or config or start:
            raise UsageError(
                "--resume goes on with a run as it was configured and takes nothing else; for a changed run,"
                " train a new one"
            )
        folder = Path(resume)
        run_config = read_resumed(folder)
    else:
        run_config = resolve(task, data, output_dir, model, validation, settings, config, start)
        folder = Path(run_config.output_dir)
    with joined_world() as world:
        if run_config.train.threads:
            torch.set_num_threads(run_config.train.threads)
        taken = (
            "name another --output-dir, or go on with that run: seqloom train --resume"
            f" {printable(str(folder))}"
        )
        if resume is None and world.first:
            files.new_folder(folder, "a new run", taken)
        world.barrier()
        with training_lock(folder, world):
            if resume is None and world.first:
                files.new_folder(
                    folder, "a new run", taken
                )  # again: another process may have held the lock before
                run_config = keep_standard_input(run_config, folder)
                files.write_atomic(folder / run_folder.RUN, run_file_text(run_config))
            world.barrier()
            done = finished_result(folder, world)
            try:
                return done or _train(
                    read_resumed(folder), folder, world, progress if world.first else lambda _: None
                )
            except (DataError, UsageError):
                if resume is None and world.first and not run_folder.has_weights(folder):
                    remove_run_files(folder)
                raise


def remove_run_files(folder: Path) -> None:
    """Removes what a run wrote that failed before it had a model, so that the mended command can be given
    again."""
    of_model = (
        *tokenizer_file_names(folder),
        run_folder.CONFIG,
        TOKENIZER_CONFIG,
        run_folder.GENERATION,
        metrics_log.METRICS,
    )
    for name in (
        *of_model,
        run_folder.TOKENIZER,
        run_folder.PREPROCESSOR,
        run_folder.DATA,
        STANDARD_INPUT,
        run_folder.RUN,
    ):  # last what makes it a run
        (folder / name).unlink(missing_ok=True)


def _train(
    run_config: RunConfig, folder: Path, world: World, progress: Callable[[Progress], None]
) -> TrainResult:
    training_data = task_to_train(run_config.task).training_data
    assert training_data is not None
    material = prepare_data(training_data, run_config, folder, world)
    name, size = run_config.model["name"], run_config.model["size"]
    tokenizer, fields = material.tokenizer, model_fields(run_config.model)
    vocabulary = tokenizer.vocabulary_size if tokenizer is not None else 0
    if issubclass(model_family(name)[1], FittedModel):
        with world.together():
            if world.first:
                fit_model(
                    run_config, folder, run_folder.model_config(name, size, vocabulary, fields), material
                )
        world.barrier()
        return finish(run_config, folder, world, read_state(checkpoint_path(folder, 1)))
    config = run_config.train
    fresh = not (folder / run_folder.CONFIG).exists()  # the last of the model's files
    torch.manual_seed(config.seed)
    new = material.build()
    model = new.model
    with world.together():
        if fresh and world.first:
            run_folder.write_model_files(
                folder,
                run_config.task,
                new.model_type,
                new.config,
                material.tokenizer,
                run_config.decode,
                new.origin,
            )
    model.to(
        run_folder.choose_device(config.device), torch.float64 if config.dtype == "float64" else torch.float32
    )
    objective = material.objective()
    optimizer = make_optimizer(model, config)
    material.initialise(model)
    with world.together():
        state = restore_checkpoint(folder, world, model, optimizer, objective)
        state.settings = check_unchanged(folder, state.settings, fixed_settings(run_config))
    state.total_steps = state.total_steps or total_steps(config, material)
    sizes = f"{sum(p.numel() for p in model.parameters()):,} parameters" + (
        f", vocabulary {vocabulary:,}" if vocabulary else ""
    )
    logger.info(
        f"training {describe_model(run_config)} ({sizes}) on {material.about()} for {state.total_steps:,} steps"
    )
    if missing() and runs_compiled_loops(model):
        logger.info(
            "its recurrent layers run without compiled loops, which are faster: python -m seqloom.native"
            " makes them (with a C++ compiler)"
        )
    with stop_signals() as interrupted:
        trainer = make_trainer(
            run_config, folder, world, material, objective, model, optimizer, state, progress, interrupted
        )
        trainer.run(state)
    return finish(run_config, folder, world, state)


def describe_model(run_config: RunConfig) -> str:
    """The model of a run, in words."""
    start = run_config.model.get("from")
    name = str(run_config.model["name"])
    return f"{name}:{run_config.model['size']}" if start is None else f"{name} from {printable(str(start))}"


def fit_model(run_config: RunConfig, folder: Path, config: Any, material: TrainingData) -> None:
    """A model without gradients: it takes the data in one go. Its only checkpoint is that of step 1."""
    name = run_config.model["name"]
    logger.info(f"fitting {name}:{run_config.model['size']} on {material.about()}")
    model: nn.Module = material.fit(model_family(name)[1], config)
    model.eval()
    run_folder.write_model_files(
        folder, run_config.task, name, model.config, material.tokenizer, run_config.decode
    )
    with torch.no_grad():
        metrics = material.validate(model)
    state = TrainerState(
        step=1,
        total_steps=1,
        best=metrics["loss"],
        best_step=1,
        stopped="max_steps",
        threads=torch.get_num_threads(),
    )
    state.settings = fixed_settings(run_config)
    metrics_log.cut(folder, 0)  # of a fit that was killed
    metrics_log.append(folder, {"step": 1, **{f"validation_{key}": value for key, value in metrics.items()}})
    save_checkpoint(folder, model, None, state)


def make_trainer(
    run_config: RunConfig,
    folder: Path,
    world: World,
    material: TrainingData,
    objective: Objective,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    progress: Callable[[Progress], None],
    interrupted: Callable[[], int],
) -> Trainer:
    """Everything that the loop needs, as functions of this run."""
    config = run_config.train
    device = next(model.parameters()).device
    stream_states = stream_states_of(objective)
    board = open_board(folder, state.step) if config.tensorboard and world.first else None

    def load(rows: Rows, whole: Rows) -> Any:
        batch = material.load(rows, whole)
        return type(batch)(*(part.to(device) for part in batch))

    def save(state: TrainerState) -> None:
        tensors = [] if stream_states is None else stream_states.tensors(world)
        if world.first:
            save_checkpoint(folder, model, optimizer, state, tensors)
            prune_checkpoints(
                folder, {state.step} | ({state.best_step} if state.best_step is not None else set())
            )
        world.barrier()

    def report(record: dict[str, Any]) -> None:
        if world.first:
            metrics_log.append(folder, record)
        if board is not None:
            board(record)

    return Trainer(
        model=model,
        objective=chosen_objective(config.objective, objective),
        optimizer=optimizer,
        config=config,
        batches=material.batches,
        load=load,
        describe=material.describe,
        validate=lambda: material.validate(model),
        save=save,
        log=report,
        progress=progress,
        interrupted=interrupted,
        evaluate_every=config.evaluate_every or max(state.total_steps // 20, 1),
        world=world,
    )


def finish(run_config: RunConfig, folder: Path, world: World, state: TrainerState) -> TrainResult:
    """Seals the folder where training is over."""
    over = state.stopped in ("max_steps", "patience")
    best = state.step if state.best_step is None else state.best_step
    if over and (problem := files.manifest_problem(checkpoint_path(folder, best))):
        logger.info(
            f"the best checkpoint (step {best}) is damaged, so the last one (step {state.step}) takes its"
            f" place: {problem}"
        )
        best = state.best_step = state.step
    metrics = metrics_log.validation(folder, best)
    if over and world.first:
        prune_checkpoints(
            folder, {state.step, best}
        )  # again: a run may be killed between its last save and this
        write_card(folder, run_config, state, metrics)
        run_folder.seal(folder, checkpoint_path(folder, best))
    world.barrier()
    return TrainResult(folder, state.step, state.best_step, str(state.stopped), metrics, world.first)


def finished_result(folder: Path, world: World) -> TrainResult | None:
    """The result of a run that is over, sealed and whole; None where there is something left to do."""
    if not (folder / files.MANIFEST).exists() or files.manifest_problem(folder) is not None:
        return None
    best = checkpoint_step(Path(files.read_json(folder / files.MANIFEST)["best"]))
    step = max((record["step"] for record in metrics_log.read(folder)), default=best)
    logger.info(
        f"{printable(str(folder))}: this run is finished (step {step}), so there is nothing to do; for a"
        " longer one, train a new run"
    )
    return TrainResult(folder, step, best, "finished", metrics_log.validation(folder, best), world.first)


def restore_checkpoint(
    folder: Path,
    world: World,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
) -> TrainerState:
    """The state of the newest whole checkpoint, its weights and memory loaded; a new one where there is none
    yet."""
    newest, skipped = newest_checkpoint(folder)
    for reason in skipped:
        logger.info(f"skipped a damaged checkpoint: {reason}")
    threads, kernels = torch.get_num_threads(), describe_kernels(model)
    if world.first:
        for path in files.leftovers(folder):
            path.unlink()
        metrics_log.cut(folder, read_state(newest).step if newest else 0)
    if newest is None:
        return TrainerState(threads=threads, kernels=kernels)
    load_model_tensors(model, newest / WEIGHTS)
    load_optimizer_tensors(optimizer, newest / OPTIMIZER)
    if (stream_states := stream_states_of(objective)) is not None:
        stream_states.load(first_state(model), read_stream_states(newest))
    state = read_state(newest)
    logger.info(f"resuming {printable(str(folder))} at step {state.step} of {state.total_steps}")
    for before, now in (
        (f"{state.threads} threads", f"{threads} threads"),
        (state.kernels or kernels, kernels),
    ):
        if before != now:
            logger.info(
                f"this run began with {before} and goes on with {now}: the same order of data, but not the"
                " same last bits"
            )
    state.threads, state.kernels = threads, kernels
    return state


def describe_kernels(model: nn.Module) -> str:
    """What the last bits of a training depend on, besides the number of threads."""
    device = next(model.parameters()).device
    processor = (
        torch.backends.cpu.get_cpu_capability()
        if device.type == "cpu"
        else torch.cuda.get_device_name(device)
    )
    loops = (
        f", {'compiled' if library() is not None else 'no compiled'} loops"
        if runs_compiled_loops(model)
        else ""
    )
    return f"torch {torch.__version__} on {processor}{loops}"


@torch.no_grad()
def first_state(model: Any) -> State:
    """Any state of a language model, which shows what its states are made of."""
    device = next(model.parameters()).device
    return model.read(torch.tensor([[BOS]], device=device), None)[1]


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """While it lasts, SIGTERM and Ctrl-C ask to save and stop; a second one stops at once. Gives which one
    asked, or 0."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked.append(number)
        with contextlib.suppress(
            OSError, RuntimeError
        ):  # a notice that cannot be written now must not keep us from saving
            logger.info(
                f"{signal.Signals(number).name}: saving and stopping after this step (once more to stop at"
                " once)"
            )

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: nobody can ask
        before = {}
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for last in (
            asked
        ):  # who asked in the last step, when nobody looked any more, asked whoever began this training
            outer = before[signal.Signals(last)]
            if callable(outer) and outer is not signal.default_int_handler:
                outer(last, None)


@contextlib.contextmanager
def training_lock(folder: Path, world: World) -> Iterator[None]:
    """Refuses a second process that would train into the same folder."""
    if not world.first:
        yield
        return
    with files.locked(folder / files.LOCK) as held:
        if not held:
            raise FolderError(
                f"{printable(str(folder))}: another process is training into this folder; wait for it or"
                " stop it"
            )
        yield
