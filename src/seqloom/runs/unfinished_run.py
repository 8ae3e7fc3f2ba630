"""A run from its first file to its last checkpoint: what it was begun with, and what vouches for its files.

unfinished.json is its first file. It lists each file as soon as that is written, so one that is not listed is
what a killed training left, and one that differs from the list is damaged.
"""

from __future__ import annotations

import logging
from pathlib import Path

from seqloom import files, manifest
from seqloom.config import RunConfig
from seqloom.errors import FolderError, printable
from seqloom.json_values import as_object
from seqloom.run_file import parse, run_file_text, to_plain
from seqloom.runs import run_folder
from seqloom.runs.run_folder import STANDARD_INPUT
from seqloom.runs.settings import (
    check_unchanged,
    fixed_settings,
    keep_standard_input,
    run_config_in,
    with_kept_input,
)
from seqloom.training.checkpoints import run_files
from seqloom.training.metrics_log import METRICS

logger = logging.getLogger(__name__)


def begin_run(folder: Path, run_config: RunConfig) -> None:
    """Makes a folder that of a run: with its settings, and data from standard input."""
    manifest.begin(folder, _settings(with_kept_input(run_config, folder)))
    if "-" in run_config.data.train:
        keep_standard_input(folder)
        manifest.add(folder, STANDARD_INPUT)
    files.write_atomic(folder / run_folder.RUN, run_file_text(with_kept_input(run_config, folder)))
    manifest.add(folder, run_folder.RUN)


def has_begun(folder: Path, run_config: RunConfig | None = None) -> bool:
    """Whether a folder holds an unfinished run, with exactly these settings where they are given. Raises
    FolderError if its list is damaged."""
    path = folder / manifest.UNFINISHED
    if not files.is_there(path):
        return False
    content = manifest.read_list(path)
    if run_folder.RUN not in content["files"]:
        return False
    return run_config is None or content.get("settings") == _settings(run_config)


def clear_unbegun(folder: Path) -> None:
    """Removes what a training left that was killed before it had written its settings."""
    if files.is_there(folder / manifest.UNFINISHED) and not has_begun(folder):
        remove_run_files(folder)


def remove_run_files(folder: Path) -> None:
    """Removes what a run wrote that failed before it had weights, so that the corrected command can be given
    again."""
    # first the list: a folder without one is no run
    manifest.begin(folder, {})
    for name in (METRICS, *run_folder.names_of_files(folder), manifest.UNFINISHED):
        files.remove(folder / name)


def check_begun(folder: Path) -> None:
    """What an unfinished run wrote is as it was written, but for settings in run.yaml that may be adjusted,
    which are said; what nothing vouches for goes, as a killed training left it. Raises FolderError
    otherwise."""
    path = folder / manifest.UNFINISHED
    if not files.is_there(path):
        _take_as_it_is(folder)
    content = manifest.read_list(path)
    listed = content["files"]
    if run_folder.RUN not in listed:
        raise FolderError(
            "its training was stopped before it began; give the command of the training again",
            folder,
        )
    for name in run_folder.names_of_files(folder):
        if name not in listed:
            files.remove(folder / name)
    if problem := manifest.problem(folder, listed, listed.keys() - {run_folder.RUN}):
        raise FolderError(f"{problem}; {run_folder.RESTORE}", folder)
    if manifest.problem(folder, listed, [run_folder.RUN]):
        _check_adjusted(folder, content.get("settings"))
        manifest.add(folder, run_folder.RUN)


def _take_as_it_is(folder: Path) -> None:
    """Lists what an older version wrote, or what the newest checkpoint vouches for where the list is gone."""
    listed = run_files(folder)
    if listed is None:
        logger.info(
            f"{printable(str(folder))}: an older version began this run, so nothing vouches for its files:"
            " they are taken as they are"
        )
        names = [
            name for name in run_folder.names_of_files(folder) if files.is_there(folder / name)
        ]
        listed = {name: manifest.entry(folder / name) for name in names}
    manifest.write_list(folder / manifest.UNFINISHED, listed)


def _check_adjusted(folder: Path, before: object) -> None:
    """Raises FolderError if run.yaml has other settings than the run began with, but for those that may be
    adjusted; says which those are."""
    run_config = run_config_in(folder)
    settings = as_object(before)
    if settings is not None:
        began = parse(RunConfig, {**settings, "output_dir": run_config.output_dir})
        check_unchanged(folder, fixed_settings(began), fixed_settings(run_config))
        old, new = _flat(began), _flat(run_config)
        changed = [
            f"{key} was {old.get(key)!r} and is {new.get(key)!r}"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        ]
    else:
        changed = ["what it was is not known"]
    if changed:
        logger.info(
            f"{printable(str(folder / run_folder.RUN))} was edited: {printable(', '.join(changed))}"
        )


def _flat(run_config: RunConfig) -> dict[str, object]:
    """section.key -> value."""
    flat: dict[str, object] = {}
    for name, value in to_plain(run_config).items():
        section = as_object(value)
        if section is None:
            flat[name] = value
        else:
            flat |= {f"{name}.{key}": setting for key, setting in section.items()}
    return flat


def _settings(run_config: RunConfig) -> dict[str, object]:
    """All settings but the place of the folder, which may move."""
    return {key: value for key, value in to_plain(run_config).items() if key != "output_dir"}
