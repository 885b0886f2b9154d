"""Models that a pruning sweep starts from: the best point of a sweep, or a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import get_console

from chop import passes
from chop.actions.settings.sweep import PruneSweepConfig, QuantizeSweepConfig
from chop.actions.sweep.experiment import JOURNAL, Start, Sweep
from chop.actions.sweep.rounding import STAGES, UNPRINTED, Setting, rounding_of
from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.files import atomic_file, make_folder
from chop.files.library_errors import library_errors
from chop.files.reading import open_regular
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
from chop.runs import MANIFEST, Journal, Manifest, key_of, read_manifest
from chop.trust import check_code, trust_named
from chop.workloads.workload import FINE_TUNED, Workload

SWEEP = "sweep quantize"
OF_MODEL = (
    *("model", "dataset", "train_epochs", "limit", "max_length", "stride", "tokenizer"),
    *("text_column", "label_column", "weights", "task", "metric", "seed"),
)
"""Settings of a run that say which model and rows it worked on."""
UNSET = {"limit": "all rows", "dataset": "the data set of its model"}
"""What None means of them."""
SUFFIXES = (".mz", ".pt")


def config_of_run(config: PruneSweepConfig, workload: Workload | None) -> PruneSweepConfig:
    """The settings with model and data of the run that `config.start_from` names.

    Args:
        config: the settings.
        workload: where one is given it is the model; the settings stay as they are.
    Raises:
        ConfigError: a setting says something else than that of the run.
        CheckpointError: the folder holds no model, its manifest is broken, or the run has not
            finished.
    """
    manifest = _manifest_of(config)
    if manifest is None and config.start_from is not None:
        _checkpoint_in(config.start_from)  # a wrong name is found before a model is loaded
    if manifest is None or workload is not None:
        return config
    defaults = {each.name: each.default for each in dataclasses.fields(config)}
    taken: dict[str, Any] = {}
    for name in OF_MODEL:
        own, given = manifest.settings.get(name), getattr(config, name)
        if given not in (defaults[name], own):
            option = f"--{name.replace('_', '-')}"
            used = UNSET.get(name, "its default") if own is None else own
            raise ConfigError(
                f"{option} {given}: '{config.start_from}' used {used}; leave {option} out."
            )
        if name in manifest.settings:  # versions before a setting have no entry
            taken[name] = own
    assert config.start_from is not None
    with trust_named(vars(config)):
        check_code(taken, config.start_from / MANIFEST, "--model")
    _bring_fine_tuned(config.start_from, config.out)
    return dataclasses.replace(config, **taken)


def _bring_fine_tuned(folder: Path, out: Path) -> None:
    """Copies the float model that a run fine-tuned, where it did; its name says what it is."""
    for path in folder.glob(FINE_TUNED.format("*")):
        if not (out / path.name).exists():
            with atomic_file(make_folder(out) / path.name) as temporary:
                shutil.copyfile(path, temporary)


def find_start(config: PruneSweepConfig, workload: Workload) -> Start | None:
    """What `config.start_from` names; None where the float model is pruned.

    Raises:
        CheckpointError: there is no model, or that of a sweep on another model or other rows.
    """
    folder = config.start_from
    if folder is None:
        return None
    manifest = _manifest_of(config)
    if manifest is not None and manifest.kind == SWEEP:
        return _start_of_sweep(folder, manifest, config, workload)
    if manifest is not None and manifest.kind.startswith("sweep"):
        raise CheckpointError(
            f"'{folder}' is of chop {manifest.kind}, which keeps no model: expected a folder of "
            "chop sweep quantize or chop compress, or a checkpoint."
        )
    checkpoint = _checkpoint_in(folder)
    digest = _digest(checkpoint)
    return Start(lambda: _read(checkpoint, workload), {"checkpoint": digest})


def _manifest_of(config: PruneSweepConfig) -> Manifest | None:
    """The manifest of the run that finished in the folder; None of a checkpoint without one."""
    folder = config.start_from
    if folder is None or not (folder / MANIFEST).exists():
        return None
    found = read_manifest(folder).results
    if found is None:
        raise CheckpointError(f"'{folder}': its run has not finished; run the same command again.")
    return found


def _start_of_sweep(
    folder: Path, manifest: Manifest, config: PruneSweepConfig, workload: Workload
) -> Start:
    """The best point of a sweep, made again; the file of its graph is kept in `config.out`.

    Sweeps keep numbers alone. Equal seeds give equal weights on the same machine.
    """
    own: QuantizeSweepConfig = parse(QuantizeSweepConfig, manifest.settings, str(folder))
    judged = workload.with_validation() if own.splits_widths else workload
    sweep = Sweep(rounding_of(own, judged), judged)
    stage, setting, seed, score = _best(folder, manifest, sweep)
    metric, label = workload.task.metric, ".".join(map(str, setting))
    get_console().print(
        f"start: {stage} {label} of {folder}, {metric.format_value(score)} on its test rows",
        highlight=False,
        markup=False,
    )
    settings = sweep.settings_at(stage, setting, seed)
    path = config.out / f"start-{key_of(settings)[:12]}"

    def made() -> MaseGraph:
        if not path.with_suffix(".mz").exists():
            get_console().print(
                f"start: making {stage} {label} again", highlight=False, markup=False
            )
            sweep.graph_at(stage, setting, seed).export(path)
        return _read(path, workload)

    return Start(made, settings)


def _best(
    folder: Path, manifest: Manifest, sweep: Sweep[Setting]
) -> tuple[str, Setting, int, float]:
    """Stage, setting, seed and metric of the best point; of equal ones that of fewest bits.

    By validation rows, where the sweep has measured them.
    """
    points = list(_points_of(manifest.rows))
    metric, seed = sweep.workload.task.metric, sweep.experiment.seeds[0]
    if not points:
        raise CheckpointError(f"'{folder}': the table of its manifest has no point.")
    judges = 0 if all(validation is not None for _, _, (validation, _), _ in points) else 1
    stage, setting, _, _ = max(points, key=lambda p: (metric.key(p[2][judges]), -p[3]))
    found = Journal(folder / JOURNAL).find(sweep.settings_at(stage, setting, seed))
    if found is None:
        raise CheckpointError(
            f"'{folder}' has measured another model or other rows than {sweep.workload.title}: "
            "give the model and data of that sweep."
        )
    return stage, setting, seed, found[metric.name]


def _points_of(
    rows: tuple[Mapping[str, Any], ...],
) -> Iterator[tuple[str, Setting, tuple[Any, Any], float]]:
    """Stage, setting, metric on validation and on test rows, and bits."""
    for row in rows:
        for stage, validation in zip(STAGES, UNPRINTED, strict=True):
            if row.get(stage) is not None:
                setting = (row["width"], row["frac_width"])
                yield stage, setting, (row.get(validation), row[stage]), row["bits"]


def _checkpoint_in(path: Path) -> Path:
    """The checkpoint that a path means: its own name, or the one in the folder."""
    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    if stem.with_name(stem.name + SUFFIXES[0]).is_file():
        return stem
    found = sorted(path.glob(f"*{SUFFIXES[0]}")) if path.is_dir() else []
    if len(found) != 1:
        listed = ", ".join(each.stem for each in found) or "none"
        raise CheckpointError(
            f"'{path}': expected a folder of chop sweep quantize or chop compress, or one "
            f"checkpoint, found {listed}."
        )
    return found[0].with_suffix("")


def _digest(checkpoint: Path) -> str:
    digest = hashlib.sha256()
    for suffix in SUFFIXES:
        path = checkpoint.with_name(checkpoint.name + suffix)
        with library_errors(path), open_regular(path, "artifact") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _read(checkpoint: Path, workload: Workload) -> MaseGraph:
    """The graph of a checkpoint on the workload's device, its weights as parameters.

    Packed weights are values of their format: training changes nothing until it has moved them by
    half a step.
    """
    mg = MaseGraph.from_checkpoint(checkpoint)
    mg.model.to(workload.device)
    if any(isinstance(module, PackedOperator) for module in mg.model.modules()):
        mg, _ = passes.pack_transform_pass(mg, {"unpack": True, "silent": True}, inplace=True)
    return mg
