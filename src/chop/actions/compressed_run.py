"""Compressed run: what the output folder of `chop compress` says of the model and its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from chop import runs
from chop.errors import CheckpointError
from chop.files import latest, shared_lock
from chop.files.documents import read_json
from chop.trust import check_code
from chop.workloads.settings import WorkloadConfig

WEIGHTS = "model.pt"


class CompressedRun(NamedTuple):
    """A run that compressed a model.

    Attributes:
        settings: of the run.
        has_model: the run saved a model.
        file: says both.
    """

    settings: Mapping[str, Any]
    has_model: bool
    file: Path


def workload_config(
    folder: Path, given: Mapping[str, Any], option: str | None = None
) -> WorkloadConfig:
    """Model and data that a folder was compressed from; settings that were given win.

    Args:
        folder: of the run.
        given: settings that win.
        option: by which the command names the float model; None where it has none.
    Raises:
        CheckpointError: the folder holds no compressed model.
        ConfigError: its files name code, see `chop.trust`.
    """
    if not compressed_run(folder).has_model:
        raise no_model(folder)
    return settings_of_run(folder, given, option)


def no_model(folder: Path) -> CheckpointError:
    """The error of a run that found no format."""
    return CheckpointError(
        f"the run in '{folder}' saved no model: no format kept within its max_drop; run chop "
        "compress again with --keep-best."
    )


def settings_of_run(
    folder: Path, given: Mapping[str, Any], option: str | None = None
) -> WorkloadConfig:
    """The same, whether the run saved a model or not.

    Raises:
        CheckpointError: the folder is of no run.
        ConfigError: its files name code, see `chop.trust`.
    """
    settings, _, file = compressed_run(folder)
    known = {field.name for field in dataclasses.fields(WorkloadConfig)}
    chosen = {k: value for k, value in settings.items() if k in known and k not in given}
    check_code(chosen, file, option)
    return WorkloadConfig(**{**chosen, **given})


def compressed_run(folder: Path) -> CompressedRun:
    """The run that compressed a model into a folder.

    Runs of earlier versions have no manifest; `result.json` says the same of them.
    """
    with suppress(CheckpointError):
        found = runs.read_manifest(folder).results
        if found is not None and found.kind == "compress":
            has_model = any(each.path == WEIGHTS for each in found.artifacts)
            return CompressedRun(found.settings, has_model, folder / runs.MANIFEST)
    with shared_lock(folder):
        path = latest(folder / "result.json")
        if not path.is_file():
            raise CheckpointError(
                f"'{folder}' holds no {runs.MANIFEST} of a finished run, and no result.json: "
                "expected the output folder of chop compress."
            )
        try:
            result = read_json(path, "result")
            return CompressedRun(dict(result["config"]), result["saved"] is not None, path)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(f"'{path}' is no result of chop compress: {error}.") from None
