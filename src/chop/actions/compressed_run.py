"""Compressed run: what the output folder of `chop compress` says of the model and its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chop import runs
from chop.errors import CheckpointError
from chop.files import latest, shared_lock
from chop.files.documents import read_json
from chop.workloads.settings import WorkloadConfig

WEIGHTS = "model.pt"


def workload_config(folder: Path, given: Mapping[str, Any]) -> WorkloadConfig:
    """Model and data that a folder was compressed from; settings that were given win.

    Raises:
        CheckpointError: the folder holds no compressed model.
    """
    if not compressed_run(folder)[1]:
        raise no_model(folder)
    return settings_of_run(folder, given)


def no_model(folder: Path) -> CheckpointError:
    """The error of a run that found no format."""
    return CheckpointError(
        f"the run in '{folder}' saved no model: no format kept within its max_drop; run chop "
        "compress again with --keep-best."
    )


def settings_of_run(folder: Path, given: Mapping[str, Any]) -> WorkloadConfig:
    """The same, whether the run saved a model or not.

    Raises:
        CheckpointError: the folder is of no run.
    """
    settings, _ = compressed_run(folder)
    known = {field.name for field in dataclasses.fields(WorkloadConfig)}
    chosen = {name: value for name, value in settings.items() if name in known}
    return WorkloadConfig(**{**chosen, **given})


def compressed_run(folder: Path) -> tuple[Mapping[str, Any], bool]:
    """The settings of the run that compressed a model into a folder, and whether it saved one.

    Runs of earlier versions have no manifest; `result.json` says the same of them.
    """
    with suppress(CheckpointError):
        found = runs.read_manifest(folder).results
        if found is not None and found.kind == "compress":
            return found.settings, any(each.path == WEIGHTS for each in found.artifacts)
    with shared_lock(folder):
        path = latest(folder / "result.json")
        if not path.is_file():
            raise CheckpointError(
                f"'{folder}' holds no {runs.MANIFEST} of a finished run, and no result.json: "
                "expected the output folder of chop compress."
            )
        try:
            result = read_json(path)
            return dict(result["config"]), result["saved"] is not None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(f"'{path}' is no result of chop compress: {error}.") from None
