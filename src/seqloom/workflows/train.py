"""From text files to a run folder: read, tokenise, train, seal."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack, cast, final

import torch
from torch import nn

from seqloom import files, manifest
from seqloom.config import RunConfig
from seqloom.errors import DataError, FolderError, UsageError, counted, printable
from seqloom.layers.low_rank import load_low_rank, low_rank_tensors, merged
from seqloom.layers.recurrent.stack import runs_compiled_loops
from seqloom.models import model_family
from seqloom.native.library import library, missing
from seqloom.protocols import (
    Batch,
    FittedModel,
    HiddenReader,
    Objective,
    Rows,
    State,
    TrainingData,
    updating,
)
from seqloom.registry import task_to_train
from seqloom.runs import run_folder
from seqloom.runs.adapters import whole_parts, write_run_adapter
from seqloom.runs.model_card import write_card
from seqloom.runs.new_model import model_config
from seqloom.runs.settings import (
    check_unchanged,
    fixed_settings,
    model_fields,
    read_resumed,
)
from seqloom.runs.trackers import open_trackers
from seqloom.runs.unfinished_run import (
    begin_run,
    check_begun,
    clear_unbegun,
    has_begun,
    remove_run_files,
)
from seqloom.shapes import on_device
from seqloom.tasks.model_to_train import model_to_train
from seqloom.tasks.settings import resolve
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.text.special_tokens import BOS
from seqloom.training import metrics_log
from seqloom.training.checkpoints import (
    CHECKPOINT,
    LOW_RANK,
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
    read_tensors,
    save_checkpoint,
)
from seqloom.training.distributed import World, joined_world
from seqloom.training.loop import Progress, Trainer
from seqloom.training.metrics_log import Metrics
from seqloom.training.objectives import chosen_objective
from seqloom.training.stream_states import stream_states_of
from seqloom.workflows.notebook import is_notebook, lines_on_standard_error, notebook_bar
from seqloom.workflows.training_lines import TrainingLines

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
    chosen_by: str = "loss"
    """What chose the best checkpoint: the name of a metric."""
    first: bool = True
    """Whether this is the first of the workers, which speaks for all."""


class TrainArguments(TypedDict, total=False):
    """The keywords of `train` that configure a new run."""

    output_dir: str | Path | None
    """The new run folder."""
    model: str | None
    """NAME or NAME:SIZE."""
    validation: Sequence[str]
    """Validation files."""
    settings: Sequence[str]
    """`key=value`, as after `--set`."""
    config: str | None
    """A run file, whose values all others change."""
    start: str | Path | None
    """A folder, or a name of the hub, whose weights and tokenizer the model starts from."""


def train(
    task: str | None = None,
    data: Sequence[str] = (),
    *,
    resume: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Unpack[TrainArguments],
) -> TrainResult:
    """Trains a model into a new run folder, or continues a run that was stopped (`resume`). How far it is, is
    given to `progress`, or else shown by a bar in a notebook, and by lines of the log elsewhere.

    `output_dir`, `model`, `validation`, `settings`, `config` and `start`: see `TrainArguments`. Raises
    UsageError, DataError, FolderError and TrainingError, each with one line for the user.
    """
    if unknown := options.keys() - TrainArguments.__annotations__.keys():
        raise TypeError(f"train() got an unexpected keyword argument '{min(unknown)}'")
    arguments: TrainArguments = {
        "output_dir": None,
        "model": None,
        "validation": (),
        "settings": (),
        "config": None,
        **options,
    }
    if resume is None:
        run_config = resolve(task, data, **arguments)
        folder = Path(run_config.output_dir)
    elif task or data or any(arguments.values()):
        raise UsageError(
            "--resume goes on with a run as it was configured and takes nothing else; for a changed run,"
            " train a new one"
        )
    else:
        folder = Path(resume)
        run_config = read_resumed(folder)
    with lines_on_standard_error(), joined_world(run_config.train.worker_timeout) as world:
        if run_config.train.threads:
            torch.set_num_threads(run_config.train.threads)
        is_new = False
        with world.together():
            if resume is None and world.first:
                check_new_folder(folder, run_config)
        with training_lock(folder, world):
            with world.together():
                if world.first:
                    is_new = begin_or_check(folder, run_config, resume is None)
            if (result := finished_result(folder, world)) is not None:
                return result
            try:
                return _train(read_resumed(folder), folder, world, progress)
            except (DataError, UsageError):
                if is_new and not run_folder.has_weights(folder):
                    remove_run_files(folder)
                raise


def begin_or_check(folder: Path, run_config: RunConfig, as_new: bool) -> bool:
    """Makes the folder that of a run, or checks what an earlier training wrote; whether it is a new one. The
    command of a training that was killed may be given again."""
    if as_new:
        clear_unbegun(folder)
        # again: another process may have held the lock before
        check_new_folder(folder, run_config)
        if not has_begun(folder):
            begin_run(folder, run_config)
            return True
    if not files.is_there(folder / manifest.MANIFEST):
        check_begun(folder)
    return False


def check_new_folder(folder: Path, run_config: RunConfig) -> None:
    """Raises UsageError if a run would begin in a folder that holds anything but the same run, or one that
    was killed before it began."""
    if files.is_there(folder / manifest.UNFINISHED) and (
        not has_begun(folder) or has_begun(folder, run_config)
    ):
        return
    resume = f"seqloom train --resume {printable(str(folder))}"
    files.new_folder(
        folder, "a new run", f"name another --output-dir, or go on with that run: {resume}"
    )


def _train(
    run_config: RunConfig,
    folder: Path,
    world: World,
    progress: Callable[[Progress], None] | None,
) -> TrainResult:
    prepare = task_to_train(run_config.task).training_data
    assert prepare is not None
    data = prepare_data(prepare, run_config, folder, world)
    if issubclass(model_family(run_config.model["name"])[1], FittedModel):
        with world.together():
            if world.first:
                fit_model(run_config, folder, data)
        world.barrier()
        return finish(run_config, folder, world, read_state(checkpoint_path(folder, 1)))
    training = start_training(run_config, folder, world, data)
    log_start(training)
    state, first_step = training.state, training.state.step
    with contextlib.ExitStack() as stack:
        receivers: list[Callable[[Metrics], None]] = []
        if world.first:
            receivers += stack.enter_context(open_trackers(run_config, folder, first_step))
        if world.first and progress is None:
            lines = TrainingLines(state)
            progress = notebook_bar() if is_notebook() else lines.progress
            receivers.append(lines.record)
        show = progress if world.first and progress is not None else (lambda _: None)
        interrupted = stack.enter_context(stop_signals())
        training.trainer(show, interrupted, receivers).run(state)
    return finish(run_config, folder, world, training.state)


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """A model in training, and what the loop needs of its run."""

    run_config: RunConfig
    folder: Path
    world: World
    data: TrainingData
    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    state: TrainerState

    def trainer(
        self,
        progress: Callable[[Progress], None],
        interrupted: Callable[[], int],
        receivers: Sequence[Callable[[Metrics], None]] = (),
    ) -> Trainer:
        """`receivers` are given the records of metrics.jsonl too."""
        config = self.run_config.train
        return Trainer(
            model=self.model,
            objective=chosen_objective(config.objective, self.objective),
            optimizer=self.optimizer,
            config=config,
            batches=self.data.batches,
            load=self.load,
            describe=self.data.describe,
            validate=self.validate,
            save=self.save,
            log=self.log(receivers),
            progress=progress,
            interrupted=interrupted,
            evaluate_every=config.evaluate_every or max(self.state.total_steps // 20, 1),
            world=self.world,
        )

    def validate(self) -> dict[str, float]:
        with merged(self.model):
            return self.data.validate(self.model)

    def load(self, rows: Rows, whole: Rows) -> Batch:
        return on_device(self.data.load(rows, whole), next(self.model.parameters()).device)

    def save(self, state: TrainerState) -> None:
        stream_states = stream_states_of(self.objective)
        # all workers take part in gathering the states
        tensors = [] if stream_states is None else stream_states.tensors(self.world)
        if self.world.first:
            low_rank = low_rank_tensors(self.model)
            with merged(self.model):
                save_checkpoint(self.folder, self.model, self.optimizer, state, tensors, low_rank)
            steps = {state.step, state.step if state.best_step is None else state.best_step}
            prune_checkpoints(self.folder, steps)
        self.world.barrier()

    def log(self, receivers: Sequence[Callable[[Metrics], None]]) -> Callable[[Metrics], None]:
        """A function that takes a record of metrics.jsonl."""

        def write(record: Metrics) -> None:
            if self.world.first:
                metrics_log.append(self.folder, record)
            for receive in receivers:
                receive(record)

        return write


def start_training(
    run_config: RunConfig, folder: Path, world: World, data: TrainingData
) -> Training:
    """A new model on its device, or the model, the optimizer and the state of the newest checkpoint."""
    fresh = not (folder / run_folder.CONFIG).exists()  # the last of the model's files
    has_weights = run_folder.has_weights(folder)
    start = model_to_train(data, run_config, word_vectors=not has_weights)
    (model, model_config, model_type, origin, prompted), objective, optimizer = start
    with world.together():
        if updating(objective) is not None:
            refuse_workers(world, run_config.task)
        if fresh and world.first:
            run_folder.write_model_files(
                folder,
                run_config.task,
                model_type,
                model_config,
                data.tokenizer,
                run_config.decode,
                origin,
                prompted,
            )
    with world.together():
        state = restore_checkpoint(folder, world, model, optimizer, objective)
        state.settings = check_unchanged(folder, state.settings, fixed_settings(run_config))
    state.total_steps = state.total_steps or total_steps(run_config.train, data)
    return Training(
        run_config=run_config,
        folder=folder,
        world=world,
        data=data,
        model=model,
        objective=objective,
        optimizer=optimizer,
        state=state,
    )


def refuse_workers(world: World, task: str) -> None:
    """Raises UsageError if several workers would each train the whole model."""
    if world.size > 1:
        raise UsageError(
            f"{task} must be trained by one process, whose threads share the work (train.threads), but there"
            f" are {world.size} workers; start it without torchrun"
        )


def log_start(training: Training) -> None:
    data, steps = training.data, training.state.total_steps
    parameters = list(training.model.parameters())
    sizes = f"{sum(parameter.numel() for parameter in parameters):,} parameters"
    if not all(parameter.requires_grad for parameter in parameters):
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        sizes += f", {trained:,} of them trained"
    if data.tokenizer is not None:
        sizes += f", vocabulary {data.tokenizer.vocabulary_size:,}"
    model = describe_model(training.run_config)
    logger.info(f"training {model} ({sizes}) on {data.about()} for {counted(steps, 'step')}")
    if training.run_config.train.lora_rank is not None:
        logger.info(describe_lora(training.model, training.run_config))
    if missing() and runs_compiled_loops(training.model):
        logger.info(
            "its recurrent layers run without compiled loops, which are faster: python -m seqloom.native"
            " makes them (with a C++ compiler)"
        )


def describe_lora(model: nn.Module, run_config: RunConfig) -> str:
    """What LoRA trains."""
    config = run_config.train
    named = model.named_parameters()
    sizes = {name: parameter.numel() for name, parameter in named if parameter.requires_grad}
    whole = {}
    for part in whole_parts(run_config, model.config):
        inside = [size for name, size in sizes.items() if name.startswith(part)]
        whole[part.rstrip(".")] = sum(inside)
    low_rank = sum(sizes.values()) - sum(whole.values())
    line = f"LoRA of rank {config.lora_rank} on {', '.join(config.lora_targets)}: {low_rank:,} parameters"
    for part, size in whole.items():
        if size:
            line += f"; all {size:,} of {part}"
    return line


def describe_model(run_config: RunConfig) -> str:
    """The model of a run, in words."""
    start = run_config.model.get("from")
    name = str(run_config.model["name"])
    return (
        f"{name}:{run_config.model['size']}"
        if start is None
        else f"{name} from {printable(str(start))}"
    )


def fit_model(run_config: RunConfig, folder: Path, data: TrainingData) -> None:
    """A model without gradients: it takes the data in one go. Its only checkpoint is that of step 1."""
    name, size = run_config.model["name"], run_config.model["size"]
    vocabulary_size = 0 if data.tokenizer is None else data.tokenizer.vocabulary_size
    config = model_config(name, size, vocabulary_size, model_fields(run_config.model))
    logger.info(f"fitting {name}:{size} on {data.about()}")
    model = data.fit(model_family(name)[1], config)
    model.eval()
    run_folder.write_model_files(
        folder, run_config.task, name, model.config, data.tokenizer, run_config.decode
    )
    with torch.no_grad():
        metrics = data.validate(model)
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
    record = {f"validation_{name}": value for name, value in metrics.items()}
    metrics_log.append(folder, {"step": 1, **record})
    save_checkpoint(folder, model, None, state)


def finish(run_config: RunConfig, folder: Path, world: World, state: TrainerState) -> TrainResult:
    """Seals the folder where training is over."""
    over = state.stopped in ("max_steps", "patience")
    best = state.step if state.best_step is None else state.best_step
    if over and (problem := manifest.manifest_problem(checkpoint_path(folder, best))):
        logger.info(
            f"the best checkpoint (step {best}) is damaged, so the last one (step {state.step}) takes its"
            f" place: {problem}"
        )
        best = state.best_step = state.step
    metrics = metrics_log.validation(folder, best)
    if over and world.first:
        # again: a run may be killed between its last save and this
        prune_checkpoints(folder, {state.step, best})
        write_card(folder, run_config, state, metrics, folder)
        if run_config.train.lora_rank is not None:
            write_run_adapter(folder, run_config, checkpoint_path(folder, best))
        run_folder.seal(folder, checkpoint_path(folder, best))
    world.barrier()
    chosen_by = run_config.train.best
    return TrainResult(
        folder, state.step, state.best_step, str(state.stopped), metrics, chosen_by, world.first
    )


def finished_result(folder: Path, world: World) -> TrainResult | None:
    """The result of a run that is over, sealed and whole; None if there is something left to do."""
    path = folder / manifest.MANIFEST
    if not files.is_there(path):
        return None
    run_folder.check_files(folder)
    content = manifest.read_list(path)
    if not CHECKPOINT.fullmatch(name := str(content.get("best"))):
        raise FolderError("must name the best checkpoint, but does not", path)
    metrics_log.check(folder, content.get("log"))
    best = checkpoint_step(Path(name))
    step = max((record["step"] for record in metrics_log.read(folder)), default=best)
    logger.info(
        f"{printable(str(folder))}: this run is finished (step {step}), so there is nothing to do; for a"
        " longer one, train a new run"
    )
    metrics, chosen_by = metrics_log.validation(folder, best), read_resumed(folder).train.best
    return TrainResult(folder, step, best, "finished", metrics, chosen_by, world.first)


def restore_checkpoint(
    folder: Path,
    world: World,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
) -> TrainerState:
    """The state of the newest whole checkpoint, its weights and memory loaded; a new one if there is none
    yet."""
    newest, skipped = newest_checkpoint(folder)
    for reason in skipped:
        logger.info(f"skipped a damaged checkpoint: {reason}")
    threads, kernels = torch.get_num_threads(), describe_kernels(model)
    if world.first:
        for path in files.leftovers(folder):
            path.unlink()
        if newest is None:
            metrics_log.cut(folder, 0)
        else:
            log = manifest.read_list(newest / manifest.MANIFEST).get("log")
            metrics_log.cut(folder, read_state(newest).step, log)
    if newest is None:
        return TrainerState(threads=threads, kernels=kernels)
    with merged(model):
        load_model_tensors(model, newest / WEIGHTS)
    if low_rank_tensors(model):
        load_low_rank(model, read_tensors(newest / LOW_RANK))
    load_optimizer_tensors(optimizer, newest / OPTIMIZER)
    if (stream_states := stream_states_of(objective)) is not None:
        device, reader = next(model.parameters()).device, cast("HiddenReader", model)
        stream_states.load(first_state(reader, device), read_stream_states(newest))
    state = read_state(newest)
    logger.info(f"resuming {printable(str(folder))} at step {state.step} of {state.total_steps}")
    changes = (
        (f"{state.threads} threads", f"{threads} threads"),
        (state.kernels or kernels, kernels),
    )
    for before, now in changes:
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
    if device.type == "cpu":
        processor = torch.backends.cpu.get_cpu_capability()
    else:
        processor = torch.cuda.get_device_name(device)
    loops = ""
    if runs_compiled_loops(model):
        loops = ", no compiled loops" if library() is None else ", compiled loops"
    return f"torch {torch.__version__} on {processor}{loops}"


@torch.no_grad()
def first_state(model: HiddenReader, device: torch.device) -> State:
    """Any state of a language model, which shows what its states are made of."""
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
        # a notice that cannot be written now must not keep us from saving
        with contextlib.suppress(OSError, RuntimeError):
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
        # a signal in the last step, which nobody looked for any more, is for the caller of this training
        for last in asked:
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
