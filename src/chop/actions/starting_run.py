"""Run that a job starts from: `start_from` is the folder of a run, or a checkpoint."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import Any, TypeVar

from chop import passes
from chop.actions.compress.earlier_run import (
    WEIGHTS,
    check_files,
    check_model_file,
    no_model,
    with_reachable_paths,
)
from chop.base.files import atomic_file, make_folder, settle, shared_lock
from chop.base.plugins import naming_packages
from chop.base.trust import check_code, trust_named
from chop.errors import CheckpointError, ConfigError
from chop.hardware.integer_form import is_integer
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.config_file import CONFIG
from chop.ir.storage.checkpoint import find_checkpoint
from chop.models import builtin_model
from chop.nn.packed import PackedOperator
from chop.runs import MANIFEST, Manifest, read_manifest
from chop.workloads.load import FINE_TUNED
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

C = TypeVar("C", bound=Any)
JOB_SETTINGS = ("out", "device", "force", "batch_size", "matmul_precision")
MODEL_SETTINGS = tuple(
    each.name for each in dataclasses.fields(WorkloadConfig) if each.name not in JOB_SETTINGS
)
"""Settings of a run that select its model and rows."""
UNSET = {"limit": "all rows", "dataset": "the data set of its model"}
"""Meaning of None for these settings."""
CIRCUIT = "; chop emit {} --check-only checks it, and --place is given with the model"
"""End of the message for the folder of a circuit."""
RESULT, REPORT = "result.json", "report.json"
"""Files by which a folder without a manifest is recognized as that of a run."""


def config_of_run(config: C, workload: Workload | None, out: Path | None = None) -> C:
    """Returns the settings with model and data of the run named by `config.start_from`.

    Args:
        config: settings of the job.
        workload: replaces the model and data of the run, if given. The settings stay as they are.
        out: folder for the job's files instead of `config.out`.
    Raises:
        ConfigError: if a setting contradicts that of the run.
        CheckpointError: if the folder has no model, its manifest is broken, or the run has not
            finished.
    """
    manifest = read_start_manifest(config)
    if manifest is None and config.start_from is not None:
        checkpoint = checkpoint_in(config.start_from)  # before a model is loaded
        if workload is None:
            _check_is_of_no_run(config, checkpoint)
    if manifest is None or workload is not None:
        return config
    assert config.start_from is not None
    settings = with_reachable_paths(manifest.settings, config.start_from)
    defaults = {each.name: each.default for each in dataclasses.fields(config)}
    taken: dict[str, Any] = {}
    for name in MODEL_SETTINGS:
        own, given = settings.get(name), getattr(config, name)
        own = tuple(own) if isinstance(own, list) else own
        if given not in (defaults[name], own):
            option = f"--{name.replace('_', '-')}"
            used = UNSET.get(name, "its default") if own is None else own
            raise ConfigError(
                f"{option} {given}: '{config.start_from}' used {used}; leave {option} out."
            )
        if name in settings:  # manifests of earlier versions lack newer settings
            taken[name] = own
    with trust_named(vars(config)):
        check_code(taken, config.start_from / MANIFEST, "--model")
    check_files(taken, config.start_from / MANIFEST)
    _bring_fine_tuned(config.start_from, out or config.out)
    with naming_packages(manifest.plugin_names, f"'{config.start_from}'"):
        return dataclasses.replace(config, **taken)


def _bring_fine_tuned(folder: Path, out: Path) -> None:
    """Copies the float model that a run fine-tuned, if any; its name identifies it."""
    for path in folder.glob(FINE_TUNED.format("*")):
        if not (out / path.name).exists():
            with atomic_file(make_folder(out) / path.name) as temporary:
                shutil.copyfile(path, temporary)


def read_start_manifest(config: Any) -> Manifest | None:
    """Reads the manifest of a finished run. None for a checkpoint without one."""
    folder = config.start_from
    if folder is not None and folder.is_dir():
        settle(folder)  # its files are read by their own names
    if folder is None or not (folder / MANIFEST).exists():
        return None
    results = read_manifest(folder).results
    if results is None:
        raise CheckpointError(f"'{folder}': its run has not finished. Run the same command again.")
    # Other weights for a circuit start from its folder.
    if results.kind in ("lower", "emit") and getattr(config, "weights_from", None) is None:
        raise CheckpointError(
            f"'{folder}' is from chop {results.kind} and has a graph of integers: expected a run "
            f"with float weights, or pass its model with --model."
        )
    if results.kind == "compress":
        with shared_lock(folder):
            check_model_file(folder, results)
    return results


def _check_is_of_no_run(config: Any, checkpoint: Path) -> None:
    """Raises CheckpointError if model and data of a checkpoint are in the manifest of its run."""
    folder, run = config.start_from, checkpoint.parent
    defaults = [x for x in dataclasses.fields(config) if x.name in ("model", "dataset")]
    is_bare = all(getattr(config, each.name) == each.default for each in defaults)
    if is_bare and (run / MANIFEST).exists() and read_manifest(run).kind == "compress":
        raise CheckpointError(
            f"'{folder}' is the checkpoint of the run '{run}', which has its model and data: pass "
            f"'{run}' instead, or --model and --dataset as well."
        )
    if any((folder / name).exists() for name in (RESULT, REPORT)):
        raise CheckpointError(
            f"'{folder}' lacks {MANIFEST}, which has the model and data of its run: pass "
            f"'{checkpoint}' instead, with --model and --dataset."
        )


def check_saved_model(start: Path | None) -> None:
    """Checks that a folder or file has a model to start from, before data are read.

    Args:
        start: value of `start_from`; None is the float model.
    Raises:
        CheckpointError: if the run saved no model, or its command saves none.
    """
    if start is None:
        return
    if start.is_dir():
        settle(start)
    results = read_manifest(start).results if (start / MANIFEST).exists() else None
    if results is not None and results.kind != "compress":
        own = results.settings.get("model")
        circuit = CIRCUIT.format(shlex.quote(str(start))) if results.kind == "emit" else ""
        start_again = f"; to start from its model, pass --model {own} with its other options"
        raise CheckpointError(
            f"'{start}' is from chop {results.kind}: expected a folder of chop compress, or a "
            f"quantized checkpoint{circuit}{start_again * bool(own)}."
        )
    if results is not None and all(each.path != WEIGHTS for each in results.artifacts):
        raise no_model(start)
    checkpoint_in(start)


def checkpoint_in(path: Path) -> Path:
    """Returns the checkpoint at a path: the path itself, or the only one in the folder."""
    if (checkpoint := find_checkpoint(path)) is not None:
        return checkpoint
    files = sorted(path.glob("*.mz")) if path.is_dir() else []
    if len(files) != 1:
        listed = ", ".join(each.stem for each in files) or "none"
        listed = listed if path.exists() else "no such file or folder"
        is_model = path.is_file() or (path / CONFIG).is_file() or builtin_model(str(path))
        other = f" For a model of another kind, pass --model {path}." if is_model else ""
        raise CheckpointError(
            f"'{path}': expected a folder of a command that saves a model, such as chop compress, "
            f"or one checkpoint, found {listed}.{other}"
        )
    return files[0].with_suffix("")


def refuse_integers(mg: MaseGraph, checkpoint: str | Path) -> None:
    """Raises CheckpointError if a graph is an integer graph, without float weights."""
    if is_integer(mg):
        raise CheckpointError(
            f"'{checkpoint}' is an integer graph of chop lower or chop emit: pass its original "
            "model. To check a circuit again, use chop emit FOLDER --check-only."
        )


def read_graph(checkpoint: Path, workload: Workload) -> MaseGraph:
    """Loads the graph of a checkpoint to the workload's device, with weights as parameters.

    Unpacked weights are values of their format: training has no effect until it has moved them by
    half a step.

    Raises:
        CheckpointError: if it is an integer graph.
    """
    mg = MaseGraph.from_checkpoint(checkpoint)
    refuse_integers(mg, checkpoint)
    mg.model.to(workload.device)
    if any(isinstance(module, PackedOperator) for module in mg.model.modules()):
        mg, _ = passes.pack_transform_pass(mg, {"unpack": True, "silent": True}, inplace=True)
    return mg
