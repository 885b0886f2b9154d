"""Start model of a pruning sweep: the best point of a quantization sweep, or a checkpoint."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import get_console

from chop.actions.starting_run import checkpoint_in, read_graph, read_start_manifest
from chop.actions.sweep.experiment import JOURNAL, Start, Sweep
from chop.actions.sweep.rounding import STAGES, UNPRINTED, Setting, build_rounding
from chop.actions.sweep.settings import PruneSweepConfig, QuantizeSweepConfig
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import open_regular
from chop.config import parse
from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import SUFFIXES
from chop.runs import Journal, Manifest, compute_key, has_numbers
from chop.workloads.workload import Workload

SWEEP = "sweep quantize"


def find_start(config: PruneSweepConfig, workload: Workload) -> Start | None:
    """Returns the start that `config.start_from` names; None for the float model.

    Raises:
        CheckpointError: if there is no model, or the sweep used another model or other rows.
    """
    folder = config.start_from
    if folder is None:
        return None
    manifest = read_start_manifest(config)
    if manifest is not None and manifest.kind == SWEEP:
        return _start_of_sweep(folder, manifest, config, workload)
    if manifest is not None and manifest.kind.startswith("sweep"):
        raise CheckpointError(
            f"'{folder}' is from chop {manifest.kind}, which saves no model: expected a folder of "
            "chop sweep quantize or chop compress, or a checkpoint."
        )
    checkpoint = checkpoint_in(folder)
    digest = _digest(checkpoint)
    return Start(lambda: read_graph(checkpoint, workload), {"checkpoint": digest})


def _start_of_sweep(
    folder: Path, manifest: Manifest, config: PruneSweepConfig, workload: Workload
) -> Start:
    """Returns the best point of a sweep, rebuilt on first use and saved in `config.out`.

    Sweeps save numbers only. Equal seeds give equal weights on the same machine.
    """
    own: QuantizeSweepConfig = parse(QuantizeSweepConfig, manifest.settings, str(folder))
    judged = workload.with_validation() if own.splits_widths else workload
    judged = replace(judged, teacher=None)
    if own.distill_teacher is not None:
        judged = judged.with_teacher(own.distill_teacher)
    sweep = Sweep(build_rounding(own, judged), judged)
    stage, setting, seed, score = _best(folder, manifest, sweep)
    metric, label = workload.task.metric, ".".join(map(str, setting))
    get_console().print(
        f"start: {stage} {label} of {folder}, {metric.format_value(score)} on its test rows",
        highlight=False,
        markup=False,
    )
    settings = sweep.settings_at(stage, setting, seed)
    path = config.out / f"start-{compute_key(settings)[:12]}"

    def made() -> MaseGraph:
        if not path.with_suffix(".mz").exists():
            get_console().print(f"start: rebuilding {stage} {label}", highlight=False, markup=False)
            sweep.graph_at(stage, setting, seed).export(path)
        return read_graph(path, workload)

    return Start(made, settings)


def _best(
    folder: Path, manifest: Manifest, sweep: Sweep[Setting]
) -> tuple[str, Setting, int, float]:
    """Returns stage, setting, seed and metric of the best point; among equals, that of fewest bits.

    Uses the metric on validation rows if the sweep measured it.
    """
    points = list(_list_points(manifest.rows))
    metric, seed = sweep.workload.task.metric, sweep.experiment.seeds[0]
    if not points:
        raise CheckpointError(f"'{folder}': the table in its manifest has no points.")
    if not (folder / JOURNAL).exists():
        raise CheckpointError(
            f"'{folder}' lacks {JOURNAL}, which has its measured points: copy the whole folder, or "
            "run the sweep again."
        )
    judges = 0 if all(validation is not None for _, _, (validation, _), _ in points) else 1
    stage, setting, _, _ = max(points, key=lambda p: (metric.key(p[2][judges]), -p[3]))
    is_result = functools.partial(has_numbers, names=[metric.name])
    result = Journal(folder / JOURNAL).find(sweep.settings_at(stage, setting, seed), is_result)
    if result is None:
        raise CheckpointError(
            f"'{folder}' used another model or other rows than {sweep.workload.title}: pass the "
            "model and data of that sweep."
        )
    return stage, setting, seed, result[metric.name]


def _list_points(
    rows: tuple[Mapping[str, Any], ...],
) -> Iterator[tuple[str, Setting, tuple[Any, Any], float]]:
    """Yields stage, setting, metric on validation and on test rows, and bits."""
    for row in rows:
        for stage, validation in zip(STAGES, UNPRINTED, strict=True):
            if row.get(stage) is not None:
                setting = (row["width"], row["frac_width"])
                yield stage, setting, (row.get(validation), row[stage]), row["bits"]


def _digest(checkpoint: Path) -> str:
    digest = hashlib.sha256()
    for suffix in reversed(SUFFIXES):
        path = checkpoint.with_name(checkpoint.name + suffix)
        with library_errors(path), open_regular(path, "artifact") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
