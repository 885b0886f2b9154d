"""Compressed run: what the output folder of `chop compress` says of the model and its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from chop import runs
from chop.base.files import latest, settle, shared_lock
from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.base.notices import assume, get_logger
from chop.base.plugins import naming_packages
from chop.base.trust import check_code, get_identity, is_trusted, names_code
from chop.errors import CheckpointError, ConfigError
from chop.workloads.settings import JudgedWorkloadConfig, WorkloadConfig

WEIGHTS, GRAPH, MODEL_FOLDER = "model.pt", "model.mz", "model"
AGAIN = "Run chop compress again, or get the whole folder from where it was made."

log = get_logger(__name__)


class DamagedRunError(CheckpointError):
    """A folder is that of a run, and files of it are not what the run wrote."""


class CompressedRun(NamedTuple):
    """Settings and files of a run of `chop compress`.

    Attributes:
        folder: output folder of the run.
        settings: settings of the run.
        has_model: the run saved a model.
        file: says both.
        plugin_names: names of other packages among the settings, as its manifest has them.
    """

    folder: Path
    settings: Mapping[str, Any]
    has_model: bool
    file: Path
    plugin_names: Any = None


def workload_config(
    run: CompressedRun, given: Mapping[str, Any], option: str | None = None
) -> WorkloadConfig:
    """Model and data that a run compressed; settings that were given win.

    Args:
        run: see `compressed_run`.
        given: settings that win.
        option: by which the command names the float model; None where it has none.
    Raises:
        CheckpointError: the run saved no model.
        ConfigError: its files name code, see `chop.base.trust`.
    """
    if not run.has_model:
        raise no_model(run.folder)
    return _get_settings(WorkloadConfig, run, run.settings, given, option)


def no_model(folder: Path) -> CheckpointError:
    """The error of a run that found no format."""
    return CheckpointError(
        f"the run in '{folder}' saved no model: no format kept within its max_drop; run chop "
        "compress again with --keep-best."
    )


def judged_settings_of_run(
    run: CompressedRun, given: Mapping[str, Any], option: str, command: str
) -> JudgedWorkloadConfig:
    """Model, data and judge of a run, without the function that trained it.

    Args:
        run: see `compressed_run`.
        given: settings that win; `evaluate` is another function, whose numbers `metric` names.
        option: by which the command names the float model.
        command: how the run is judged again, without the option that names the function.
    Raises:
        ConfigError: its files name code (`chop.base.trust`), or a function of a program judged it.
    """
    settings, folder = {**run.settings, "loss": None}, run.folder
    function = settings.get("evaluate")
    if "evaluate" in given and not _is_same(function, given["evaluate"]):
        settings = {**settings, "metric": None, "lower_is_better": False}
    elif function is not None and not is_trusted(function):
        model = settings["model"]
        named = f" {option} {model}" if names_code(model) and is_trusted(model) is False else ""
        raise ConfigError(
            f"'{folder}' was judged by '{function}', which does not run because a file says so: if "
            f"you trust it, give {command}{named} --evaluate {function}."
        )
    elif function is None and (judge := _judge_of_program(folder)) and "evaluate" not in given:
        raise ConfigError(
            f"'{folder}' was judged by '{judge}', a function of a program: write it to a file and "
            f"give {command} --evaluate file.py:{judge}."
        )
    return _get_settings(JudgedWorkloadConfig, run, settings, given, option)


def _is_same(function: str | None, other: str) -> bool:
    return function is not None and get_identity(function) == get_identity(other)


def _judge_of_program(folder: Path) -> str | None:
    """The name of a function that a program gave, by the results of the run; else None."""
    path = latest(folder / "result.json")
    if not path.is_file():
        return None
    with library_errors(path, error=CheckpointError):
        found = read_json(path, "result").get("metric")
    return found.get("evaluate") if isinstance(found, dict) else None


C = TypeVar("C", bound=WorkloadConfig)


def _get_settings(
    kind: type[C],
    run: CompressedRun,
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    option: str | None,
) -> C:
    known = {field.name for field in dataclasses.fields(kind)}
    chosen = {k: value for k, value in settings.items() if k in known and k not in given}
    check_code(chosen, run.file, option)
    with naming_packages(run.plugin_names, f"'{run.folder}'"):
        return kind(**{**chosen, **given})


def compressed_run(folder: Path) -> CompressedRun:
    """The run that compressed a model into a folder.

    Runs of earlier versions have no manifest; `result.json` says the same of them.

    Raises:
        DamagedRunError: its manifest cannot be read, or its model is not the one of the manifest.
        CheckpointError: the folder is of no run that compressed a model.
    """
    settle(folder)  # libraries read its files by their own names
    is_there, damage, found = (folder / runs.MANIFEST).exists(), None, None
    with shared_lock(folder):
        try:
            found = runs.read_manifest(folder).results
            if found is not None and found.kind == "compress":
                check_model_file(folder, found)
                has_model = any(each.path == WEIGHTS for each in found.artifacts)
                file, names = folder / runs.MANIFEST, found.plugin_names
                return CompressedRun(folder, found.settings, has_model, file, names)
        except DamagedRunError:
            raise
        except CheckpointError as error:
            damage = error
        path = latest(folder / "result.json")
        if not path.is_file() and found is not None:
            raise CheckpointError(_other_kind(folder, found.kind))
        if not path.is_file():
            raise (
                damage
                if damage is not None and is_there
                else CheckpointError(
                    f"'{folder}' holds no {runs.MANIFEST} of a finished run, and no result.json: "
                    "expected the output folder of chop compress."
                )
            )
        try:
            result = read_json(path, "result")
            settings, has_model = dict(result["config"]), result["saved"] is not None
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = f"'{path}' is no result of chop compress: {error}."
            raise CheckpointError(_other_kind(folder, found.kind) if found else reason) from None
    if damage is not None and is_there:
        raise DamagedRunError(f"{damage} {AGAIN}") from None
    if damage is not None:
        assume(
            f"'{folder}' has no {runs.MANIFEST}, as runs of earlier versions: model and data are "
            "those of its result.json, and its files were not compared with anything.",
            log,
        )
    return CompressedRun(folder, settings, has_model, path)


def _other_kind(folder: Path, kind: str) -> str:
    return f"'{folder}' is of chop {kind}: expected the output folder of chop compress."


def check_model_file(folder: Path, results: runs.Manifest) -> None:
    """Compares the files of a run's model with their digests.

    The file of a graph has the digest of its weights. Runs by block have a folder in its place.

    Raises:
        DamagedRunError: one is missing, or another one.
    """
    graphs = [each for each in results.artifacts if each.path == GRAPH]
    for artifact in graphs or filter(_is_model_file, results.artifacts):
        path = latest(folder / artifact.path)
        with library_errors(path, error=DamagedRunError):
            found = runs.Artifact.of(path, path.parent)
        if found.sha256 != artifact.sha256:
            raise DamagedRunError(
                f"'{path}' is not the file that its run wrote: it does not match the SHA-256 "
                f"in {runs.MANIFEST}. {AGAIN}"
            )


def _is_model_file(artifact: runs.Artifact) -> bool:
    path = PurePosixPath(artifact.path)
    is_weights = path.suffix == ".safetensors" or path.name == "config.json"
    return path.parts[0] == MODEL_FOLDER and is_weights
