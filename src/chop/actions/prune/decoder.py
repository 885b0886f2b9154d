"""Parts that `chop prune` and `chop search shape` share: load, calibrate, compare and save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.actions.evaluate.job import get_identity
from chop.actions.evaluate.models import Judged
from chop.actions.evaluate.rows import Measured, RowResult, get_result, measure_rows
from chop.actions.prune.settings import SIZES
from chop.base.files import atomic_files
from chop.errors import ConfigError
from chop.models import BUILTIN_MODELS, builtin_model, is_own
from chop.report.report import Cell, Step
from chop.runs import Journal
from chop.train import CAUSAL_LM
from chop.train.calibration import calibration_batches
from chop.train.intervals import format_cell
from chop.workloads.fingerprints import fingerprint_of_rows
from chop.workloads.load import workload_for
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

BATCH = 8
"""Number of texts per calibration batch."""
NOTE = (
    "In brackets: 95 % interval over the rows. KL: mean divergence of the answers from the "
    "original's, in nats."
)
Rows = list[dict[str, Any]]


def load_decoder(config: WorkloadConfig, workload: Workload | None, command: str) -> Workload:
    """Loads the workload of a language model.

    Raises:
        ConfigError: the model is none.
    """
    name = builtin_model(config.model) if workload is None else None
    if name is not None:
        _check_task(name, BUILTIN_MODELS[name].task, command)  # before it is trained
    if workload is None and is_own(config.model) and config.task != CAUSAL_LM:
        raise ConfigError(
            f"{command}: expected a language model of transformers, got '{config.model}'; chop "
            f"sweep prune prunes other models. If it builds a decoder, add --task {CAUSAL_LM}."
        )
    loaded = workload_for(config, workload)
    _check_task(loaded.name, loaded.task.name, command)
    return loaded


def _check_task(name: str, task: str, command: str) -> None:
    if task != CAUSAL_LM:
        raise ConfigError(
            f"{command}: expected a language model, and '{name}' is a model for {task}; "
            "passes.prune_transform_pass prunes other models."
        )


def calibration_texts(workload: Workload, rows: int) -> Iterator[dict[str, Tensor]]:
    """Yields batches of training rows that rank the parts of a decoder."""
    return calibration_batches(workload.model, workload.train, rows=rows, batch_size=BATCH)


def measure_pruned(
    model: Any,
    workload: Workload,
    batch_size: int,
    journal: Journal,
    advance: Callable[[float], None],
) -> RowResult:
    """Measures a pruned model and its distance from the original on test rows, with a journal."""
    key = {
        "rows": fingerprint_of_rows(workload.test),
        "task": workload.task.name,
        "metric": workload.task.metric.name,
        "model": get_identity(model),
        "reference": get_identity(workload.model),
    }
    judged = Judged(model, workload.model, workload.name, workload, None)
    entries = measure_rows(judged, workload.test, batch_size, journal, key, advance)
    return get_result(entries, workload.task)


def write_decoder(model: Any, processor: Any, folder: Path) -> None:
    """Writes a decoder and its tokenizer, if any, as a folder of transformers."""
    with atomic_files(folder, "model") as fresh:
        model.save_pretrained(fresh)
        if processor is not None:
            processor.save_pretrained(fresh)


def load_step(folder: Path, model: Any) -> Step:
    """Returns the code that loads a folder of `write_decoder`."""
    name = type(model).__name__
    code = f"from transformers import {name}\n\nmodel = {name}.from_pretrained({str(folder)!r})"
    return Step("Load it with transformers, without chop", code)


def get_shape(model: Any) -> dict[str, Any]:
    """Returns the sizes of a decoder and its number of parameters."""
    sizes = {name: getattr(model.config, field, None) for name, field in SIZES.items()}
    return {**sizes, "parameters": model.num_parameters()}


def compare(
    workload: Workload, shapes: Mapping[str, Mapping[str, Any]], results: Mapping[str, RowResult]
) -> tuple[Rows, Rows]:
    """Returns numbers, and the cells of a table, for the original and each pruned model.

    Args:
        workload: the original.
        shapes: shape of each pruned model by its label, see `get_shape`.
        results: results of each pruned model by the same labels, at least one.
    """
    metric = workload.task.metric
    reference = next(iter(results.values())).reference
    assert reference is not None, "measured with the original"
    has_kl = any(each.kl for each in results.values())
    measured = {"original": (reference, Measured(0.0, None) if has_kl else None)}
    measured |= {label: (each.own, each.kl) for label, each in results.items()}
    shapes = {"original": get_shape(workload.model), **shapes}
    rows = [
        {
            "model": label,
            **shapes[label],
            **_numbers(metric.name, score),
            **_numbers("kl", kl),
        }
        for label, (score, kl) in measured.items()
    ]
    cells = [
        {
            "model": label,
            **shapes[label],
            metric.name: format_cell(score.value, score.interval, metric),
            "KL": Cell.of(None if kl is None else kl.value, ".4g"),
        }
        for label, (score, kl) in measured.items()
    ]
    return rows, cells


def _numbers(name: str, measured: Measured | None) -> dict[str, Any]:
    """Returns a number with its interval, by name for the result."""
    interval = None if measured is None or measured.interval is None else [*measured.interval]
    return {name: None if measured is None else measured.value, f"{name}_interval_95": interval}
