"""Job of `chop bench model`: measures a compressed model against its float model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from chop.actions.bench.latency import (
    compare_with_float,
    describe_fastest,
    describe_missing,
    speed_tables,
    speed_tiles,
)
from chop.actions.bench.settings import BenchModelConfig
from chop.actions.compress.earlier_run import (
    WEIGHTS,
    compressed_run,
    judged_settings_of_run,
    workload_config,
)
from chop.actions.compress.job import compress
from chop.actions.compress.saving import exported_bytes
from chop.actions.compress.settings import CompressConfig
from chop.actions.job import Job, Output, load_nothing, run_job
from chop.actions.next_steps import steps_with_run
from chop.base.files import latest
from chop.base.files.temporary import scratch_folder
from chop.base.trust import confirmation, is_trusted
from chop.ir.graph import MaseGraph
from chop.quantization.summary import format_rows
from chop.report.charts.ratios import ratio_charts
from chop.report.report import Note, Report, Step, announce, figure
from chop.runs.progress import announced_steps
from chop.studies.model import ModelComparison
from chop.studies.results import flat_row
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import raise_to_graph


def bench_model(config: BenchModelConfig) -> ModelComparison:
    """Measures and writes `table.md`, `times-batch-N.json` and `times-batch-N.svg` to `config.out`.

    Raises:
        ConfigError: if settings do not fit together.
        CheckpointError: if the folder has no compressed model.
    """
    return run_job(BENCH, config)


def _bench(config: BenchModelConfig, workload: None, output: Output) -> Report[ModelComparison]:
    with scratch_folder("bench") as temporary:
        folder = config.compressed or _compressed(config, temporary)
        loaded = load_workload(_workload_config(config, folder))
        exact, packed = raise_to_graph(loaded), MaseGraph.from_checkpoint(folder / "model")
        announce(loaded.title, "building all backends, and measuring them interleaved")
        with announced_steps():
            comparison, missing = compare_with_float(
                loaded,
                exact,
                packed,
                file_bytes=(
                    exported_bytes(exact)[WEIGHTS],
                    latest(folder / WEIGHTS).stat().st_size,
                ),
                batch_sizes=config.batch_sizes,
                seconds=config.seconds,
                threads=config.threads,
                compile=config.compile,
                why_not_compiled="leave --no-compile out to measure it",
            )
        rounded = any("data_in" in row for row in format_rows(packed))
    place = config.compressed
    fastest = describe_fastest(comparison.numbers(), place, rounded, missing, loaded.name)
    verdict = f"{fastest.partition('. ')[0].rstrip('.')}." if fastest else ""
    if place is None:
        saving = _saving(config, loaded.name)
        fastest = f"{fastest} This model was not saved. To save it: {saving}".strip()
        steps = [Step("Save the measured model", saving)]
    else:
        steps = steps_with_run(place, "bench model", confirmation((loaded.name,)))
    title, times = loaded.title, comparison.by_batch.items()
    return Report(
        title,
        {
            "table.md": [
                *speed_tables(title, comparison),
                Note(fastest),
                Note(describe_missing(missing)),
            ]
        },
        comparison,
        [flat_row(row) for row in comparison.rows],
        figures={
            f"times-batch-{batch}.svg": figure(
                ratio_charts, measured, f"{title}: speed at batch {batch}", measured.baseline
            )
            for batch, measured in times
        },
        files={f"times-batch-{batch}.json": measured.save for batch, measured in times},
        result_file="",
        verdict=verdict,
        tiles=speed_tiles(comparison.numbers()),
        steps=steps,
    )


def _saving(config: BenchModelConfig, model: str) -> str:
    """Returns the command that saves the measured model."""
    words = ["chop", "compress", "--model", model, "--formats", config.format]
    words += ["--qat-epochs", "0", "--keep-best"]
    words += [] if config.dataset is None else ["--dataset", config.dataset]
    words += [] if config.max_length is None else ["--max-length", str(config.max_length)]
    return shlex.join(words)


BENCH = Job("bench model", _bench, load_nothing)


def _compressed(config: BenchModelConfig, folder: Path) -> Path:
    settings = CompressConfig(
        **_given(config),
        out=folder,
        formats=(config.format,),
        qat_epochs=0,
        keep_best=True,
        bench_seconds=0.0,
        device=config.device,
    )
    compress(settings)
    return folder


def _workload_config(config: BenchModelConfig, folder: Path) -> WorkloadConfig:
    """Returns the settings that the folder was compressed with; given settings take precedence."""
    given = {**_given(config), "out": folder, "device": config.device}
    run = compressed_run(folder)
    function = run.settings.get("evaluate")
    if function is not None and is_trusted(function):  # its rows may have no labels
        return judged_settings_of_run(run, given, "--model", "chop bench model")
    return workload_config(run, given, "--model")


def _given(config: BenchModelConfig) -> dict[str, Any]:
    """Returns the given settings of the workload."""
    names = ("model", "dataset", "max_length")
    return {name: value for name in names if (value := getattr(config, name)) is not None}
