"""Settings and files of an earlier `chop compress` run, read from its output folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from chop import runs
from chop.base.files import latest, settle, shared_lock
from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.base.notices import assume, get_logger
from chop.base.plugins import naming_packages
from chop.base.trust import CODE_FILE, check_code, get_identity, is_trusted, names_code
from chop.data.files import check_is_there
from chop.errors import CheckpointError, ConfigError
from chop.models import builtin_model
from chop.workloads.settings import IN_FILES, JudgedWorkloadConfig, WorkloadConfig

WEIGHTS, GRAPH, MODEL_FOLDER = "model.pt", "model.mz", "model"
AGAIN = "Run chop compress again, or copy the whole folder again."

log = get_logger(__name__)


class DamagedRunError(CheckpointError):
    """Raised if files of a run are not those that the run wrote."""


class CompressedRun(NamedTuple):
    """Settings and files of a run of `chop compress`.

    Attributes:
        folder: output folder of the run.
        settings: settings of the run.
        has_model: the run saved a model.
        file: file that `settings` and `has_model` were read from.
        plugin_names: names from other packages among the settings, as in the manifest.
    """

    folder: Path
    settings: Mapping[str, Any]
    has_model: bool
    file: Path
    plugin_names: Any = None


def workload_config(
    run: CompressedRun, given: Mapping[str, Any], option: str | None = None
) -> WorkloadConfig:
    """Returns the model and data settings of a run; given settings take precedence.

    Args:
        run: see `compressed_run`.
        given: settings that take precedence.
        option: option of the command that names the float model, or None.
    Raises:
        CheckpointError: if the run saved no model.
        ConfigError: if its files name code, see `chop.base.trust`.
    """
    if not run.has_model:
        raise no_model(run.folder)
    return _get_settings(WorkloadConfig, run, run.settings, given, option)


def no_model(folder: Path) -> CheckpointError:
    """Returns the error for a run that saved no model."""
    return CheckpointError(
        f"the run in '{folder}' saved no model, because no format was within its max_drop: run "
        "chop compress again with --keep-best."
    )


def judged_settings_of_run(
    run: CompressedRun, given: Mapping[str, Any], option: str, command: str
) -> JudgedWorkloadConfig:
    """Returns the model, data and judge of a run, without its loss function.

    Args:
        run: see `compressed_run`.
        given: settings that take precedence; another `evaluate` resets the metric.
        option: option of the command that names the float model.
        command: command line for judging the run again, without `--evaluate`.
    Raises:
        ConfigError: if its files name code (`chop.base.trust`), or a program's function judged it.
    """
    settings, folder = {**run.settings, "loss": None}, run.folder
    function = settings.get("evaluate")
    if "evaluate" in given and not _is_same(function, given["evaluate"]):
        settings = {**settings, "metric": None, "lower_is_better": False}
    elif function is not None and not is_trusted(function):
        model = settings["model"]
        named = f" {option} {model}" if names_code(model) and is_trusted(model) is False else ""
        raise ConfigError(
            f"'{folder}' was evaluated with '{function}'. chop runs code only if the command line "
            f"names it: if you trust it, run {command}{named} --evaluate {function}."
        )
    elif function is None and (judge := _judge_of_program(folder)) and "evaluate" not in given:
        raise ConfigError(
            f"'{folder}' was evaluated with '{judge}', a function of a Python program: write it to "
            f"a file and run {command} --evaluate file.py:{judge}."
        )
    return _get_settings(JudgedWorkloadConfig, run, settings, given, option)


def _is_same(function: str | None, other: str) -> bool:
    return function is not None and get_identity(function) == get_identity(other)


def _judge_of_program(folder: Path) -> str | None:
    """Returns the name of the Python function that judged the run, from its results, or None."""
    metric = read_result(folder, "metric")
    return metric.get("evaluate") if isinstance(metric, dict) else None


def read_result(folder: Path, key: str) -> Any:
    """Returns an entry of a run's `result.json`, or None."""
    path = latest(folder / "result.json")
    if not path.is_file():
        return None
    with library_errors(path, error=CheckpointError):
        return read_json(path, "result").get(key)


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
    check_files(chosen, run.file)
    _check_dataset(chosen.get("dataset"), run.file)
    given_model, own_model = given.get("model"), settings["model"]
    if (
        given_model
        and builtin_model(given_model)
        and get_identity(given_model) != get_identity(own_model)
    ):
        raise ConfigError(
            f"{option} {given_model}: '{run.folder}' has the compressed {own_model}; pass "
            f"{option} {own_model}."
        )
    with naming_packages(run.plugin_names, f"'{run.folder}'"):
        return kind(**{**chosen, **given})


def with_reachable_paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the settings of a run with its relative paths as seen from the current folder.

    They belong to the folder in which the run was started, which its setting `out` locates.
    """
    out, place = Path(str(settings.get("out") or "")), folder.expanduser().resolve()
    home = Path(*place.parts[: -len(out.parts) or None])
    if out.is_absolute() or home == Path.cwd() or home / out != place:
        return dict(settings)
    return {
        name: _seen_from_here(value, home) if name in IN_FILES and value else value
        for name, value in settings.items()
    }


def _seen_from_here(name: str, home: Path) -> str:
    """Returns a name with the path of its file from the current folder, if it is one in `home`."""
    code = CODE_FILE.fullmatch(name)
    file = name if code is None else code["file"]
    if Path(file).is_absolute() or not (home / file).exists():
        return name
    return os.path.relpath(home / file) + name[len(file) :]


def check_files(settings: Mapping[str, Any], file: Path) -> None:
    """Checks that the code file and the weights that a run names exist.

    Relative paths belong to the folder in which the run was started.

    Raises:
        ConfigError: if a file does not exist.
    """
    code = CODE_FILE.fullmatch(str(settings.get("model")))
    for path in (code and code["file"], settings.get("weights")):
        if path and not Path(path).expanduser().exists():
            raise ConfigError(
                f"'{file}' names '{path}', which does not exist in the current folder: run the "
                "command in the folder in which the model was compressed."
            )


def _check_dataset(name: object, file: Path) -> None:
    """Raises ConfigError if a run names a data file that does not exist."""
    if not isinstance(name, str) or Path(name).expanduser().exists():
        return
    try:
        check_is_there(name)
    except ConfigError:
        raise ConfigError(
            f"'{file}' names the data set '{name}', which does not exist: run the command in the "
            "folder in which the model was compressed, or pass another file with --dataset."
        ) from None


def compressed_run(folder: Path) -> CompressedRun:
    """Reads the run that compressed a model into a folder.

    Runs of earlier versions have no manifest; `result.json` replaces it.

    Raises:
        DamagedRunError: if the manifest cannot be read, or the model does not match it.
        CheckpointError: if the folder is not the output of a compression.
    """
    settle(folder)  # libraries read its files by their own names
    is_there, damage, manifest = (folder / runs.MANIFEST).exists(), None, None
    with shared_lock(folder):
        try:
            manifest = runs.read_manifest(folder).results
            if manifest is not None and manifest.kind == "compress":
                check_model_file(folder, manifest)
                has_model = any(each.path == WEIGHTS for each in manifest.artifacts)
                file, names = folder / runs.MANIFEST, manifest.plugin_names
                settings = with_reachable_paths(manifest.settings, folder)
                return CompressedRun(folder, settings, has_model, file, names)
        except DamagedRunError:
            raise
        except CheckpointError as error:
            damage = error
        path = latest(folder / "result.json")
        if not path.is_file() and manifest is not None:
            raise CheckpointError(_other_kind(folder, manifest.kind))
        if not path.is_file():
            raise (
                damage
                if damage is not None and is_there
                else CheckpointError(
                    f"'{folder}' has no {runs.MANIFEST} of a finished run, nor result.json: "
                    "expected the output folder of chop compress."
                )
            )
        try:
            result = read_json(path, "result")
            settings, has_model = dict(result["config"]), result["saved"] is not None
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = f"'{path}' is not a result of chop compress: {error}."
            raise CheckpointError(
                _other_kind(folder, manifest.kind) if manifest else reason
            ) from None
    if damage is not None and is_there:
        raise DamagedRunError(f"{damage} {AGAIN}") from None
    if damage is not None:
        assume(
            f"'{folder}' has no {runs.MANIFEST}, as in earlier versions: model and data are read "
            "from result.json, and digests of files are not checked.",
            log,
        )
    return CompressedRun(folder, with_reachable_paths(settings, folder), has_model, path)


def _other_kind(folder: Path, kind: str) -> str:
    return f"'{folder}' is from chop {kind}: expected the output folder of chop compress."


def check_model_file(folder: Path, results: runs.Manifest) -> None:
    """Compares the files of a run's model with their digests.

    The digest of the graph file covers its weights. Runs by block have a folder instead.

    Raises:
        DamagedRunError: if a file is missing or differs.
    """
    graphs = [each for each in results.artifacts if each.path == GRAPH]
    for artifact in graphs or filter(_is_model_file, results.artifacts):
        path = latest(folder / artifact.path)
        with library_errors(path, error=DamagedRunError):
            current = runs.Artifact.of(path, path.parent)
        if current.sha256 != artifact.sha256:
            raise DamagedRunError(
                f"'{path}' has changed since its run: it does not match the SHA-256 in "
                f"{runs.MANIFEST}. {AGAIN}"
            )


def _is_model_file(artifact: runs.Artifact) -> bool:
    path = PurePosixPath(artifact.path)
    is_weights = path.suffix == ".safetensors" or path.name == "config.json"
    return path.parts[0] == MODEL_FOLDER and is_weights
