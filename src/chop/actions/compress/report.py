"""Report of a compression, and its sentences about the saved model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from chop.actions.bench.latency import (
    compare_with_float,
    describe_fastest,
    describe_missing,
    describe_speed,
    speed_tables,
)
from chop.actions.bench.ways import BACKENDS, ONNXRUNTIME, bench_command
from chop.actions.compress.doubts import note_doubts, note_large_drop
from chop.actions.compress.page import (
    build_tiles,
    layer_table,
    legend_tables,
    list_warnings,
    summarize_outcome,
)
from chop.actions.compress.saving import MODEL_FILES, ONNX_FILE, Saved, exported_bytes, file_bytes
from chop.actions.compress.sensitivity import exact_weights, layer_sensitivities
from chop.actions.compress.table import Candidate, build_curves, printed_row
from chop.actions.compress.targets import about_targets, export_targets
from chop.actions.next_steps import steps_after_compression
from chop.base.trust import confirmation
from chop.quantization.packing import READ_DIRECTLY, explained
from chop.quantization.summary import format_rows, operator_rows
from chop.report.charts.accuracy import accuracy_charts
from chop.report.report import Block, Note, Report, Step, figure
from chop.statistics.intervals import LEVEL_TEXT
from chop.studies.model import BATCH_SIZES, ModelComparison
from chop.train.intervals import Score
from chop.train.rows import has_pictures_in_text
from chop.workloads.workload import Workload

if TYPE_CHECKING:
    from chop.actions.compress.settings import CompressConfig


def build_report(
    candidates: Sequence[Candidate],
    measured: Sequence[Block],
    workload: Workload,
    config: CompressConfig,
) -> Report[dict[str, Any]]:
    """Returns the report of the measured candidates."""
    rows, metric = [candidate.row for candidate in candidates], workload.task.metric
    note_large_drop(config.max_drop, metric)
    note_doubts(candidates, workload)
    result: dict[str, Any] = {
        "config": {
            **dataclasses.asdict(config),
            "out": str(config.out),
            "model": workload.name,
        },
        "dataset": workload.dataset,
        "task": workload.task.name,
        "metric": _about_metric(workload),
        "row_counts": _row_counts(workload),
        "rows": [printed_row(candidate, metric) for candidate in candidates],
        "saved": None,
        "versions": {"torch": torch.__version__},
    }
    draw = figure(
        accuracy_charts,
        build_curves(rows),
        {"float": rows[0].test, **workload.baselines},
        xlabel="average bits per parameter",
        title=f"{workload.title}: {metric.title}{workload.judged_on}",
        metric=metric,
    )
    heading = None if metric.name == "accuracy" else f"{metric.title}:"
    return Report(
        workload.title,
        {"table.md": [Note(heading, is_printed=False), *measured]},
        result,
        result["rows"],
        figures={f"{metric.name}.svg": draw},
        steps=_steps(result, candidates[0], config),
    )


def _steps(result: Mapping[str, Any], exact: Candidate, config: CompressConfig) -> list[Step]:
    class_name = exact.graph.model.record.class_name
    trust = confirmation((config.model, config.evaluate))
    return steps_after_compression(result, config.out, class_name, ONNX_FILE, trust)


def with_saved(
    report: Report[dict[str, Any]],
    exact: Candidate,
    saved: Saved,
    workload: Workload,
    config: CompressConfig,
) -> Report[dict[str, Any]]:
    """Adds the saved model to the report of a compression."""
    chosen, result = saved.chosen, {**report.result}
    about = _about_saved(exact, saved, result, workload, config)
    layers = [layer_table(result, chosen.graph)] if result["layers"] else []
    return dataclasses.replace(
        report,
        documents={name: [*blocks, *about] for name, blocks in report.documents.items()},
        result=result,
        warnings=list_warnings(result, chosen),
        tiles=build_tiles(result, chosen, exact, workload),
        tables=[*layers, *legend_tables(config.formats, chosen.graph)],
        charts=saved.charts,
        outcome=summarize_outcome(chosen, exact, result["saved_bytes"]["model.pt"], workload),
        steps=_steps(result, exact, config),
    )


def _row_counts(workload: Workload) -> dict[str, int]:
    splits = {name: getattr(workload, name) for name in ("train", "validation", "test")}
    return {name: len(rows) for name, rows in splits.items() if rows is not None}


def _about_metric(workload: Workload) -> dict[str, Any]:
    metric, judge = workload.task.metric, workload.judge
    outcome = {"name": metric.name, "higher_is_better": metric.higher_is_better}
    return outcome if judge is None else outcome | {"evaluate": judge.code or judge.name}


def about_rows(workload: Workload, score: Score) -> str:
    """Describes the number of rows and the intervals in a line below a table."""
    if workload.judge is not None:
        kind = f"{LEVEL_TEXT} confidence intervals over {score.rows} numbers, one per row."
        single = "It gives one number, without a confidence interval."
        return f"{workload.about_test} {kind if score.rows else single}"
    counts = _row_counts(workload)
    return f"{counts['validation']} validation and {workload.about_test}"


def _about_saved(
    exact: Candidate,
    saved: Saved,
    result: dict[str, Any],
    workload: Workload,
    config: CompressConfig,
) -> list[Block]:
    """Adds facts about the saved model, such as its speed, to the result.

    Returns: the blocks of `table.md` about the saved model.
    """
    chosen, onnx = saved.chosen, saved.onnx
    result |= {
        "saved": printed_row(chosen, workload.task.metric),
        "operators": [dataclasses.asdict(row) for row in operator_rows(chosen.graph)],
        "layers": _layers(exact, saved, result, workload, config),
        "formats": format_rows(chosen.graph),
        "float_bytes": exported_bytes(exact.graph),
        "saved_bytes": file_bytes(saved.folder),
        "packed_share": saved.packed_share,
        "float_layers": saved.float_layers,
        "onnx": onnx,
        "why_no_onnx": saved.why_no_onnx,
    }
    is_whole = onnx is not None and not onnx["fallback"]
    file = saved.folder / ONNX_FILE if is_whole else None
    how = {"onnx": file, "why_no_onnx": saved.why_no_onnx}
    speed, missing = _speed(exact, saved, result, workload, config, how)
    result["speed"] = [] if speed is None else speed.numbers()
    result["not_measured"] = missing
    result["targets"] = export_targets(saved.packed)
    rounded = rounds_inputs(result)
    result["fastest"] = describe_fastest(
        result["speed"], config.out, rounded, missing, config.model
    )
    result["why_no_folder"] = saved.why_no_folder
    title = "The saved model against float"
    return [
        Note(_format_sizes(result), is_printed=False),
        Note(describe_packing(result), is_detail=True),
        *about_targets(result["targets"]),
        *(speed_tables(title, speed, is_detail=True) if speed else ()),
        Note(describe_speed(result["speed"], rounded), is_printed=False),
        Note(result["fastest"], is_printed=False),
        Note(describe_missing(missing), is_detail=True),
    ]


def rounds_inputs(result: Mapping[str, Any]) -> bool:
    """Returns True if a result of the job has formats for the inputs of layers."""
    return any("data_in" in row for row in result["formats"])


def _layers(
    exact: Candidate,
    saved: Saved,
    result: dict[str, Any],
    workload: Workload,
    config: CompressConfig,
) -> list[dict[str, Any]]:
    """Returns the weight errors and sensitivities of layers, and puts the metric into `result`."""
    chosen, rows = saved.chosen, saved.layers
    weights = exact_weights(config.method, chosen.row.method, exact.graph)
    worst = sorted(rows, key=lambda row: -row["weight_error"])
    counts = result["row_counts"]
    sensitivities = weights is not None and layer_sensitivities(
        chosen.graph,
        [row["layer"] for row in worst],
        workload.train,
        workload.task,
        evaluated=len(result["rows"]) * (counts.get("validation", 0) + counts["test"]),
        exact=weights,
    )
    if not sensitivities:
        return rows
    result["sensitivity"] = {"metric": sensitivities.metric, "rows": sensitivities.rows}
    return [{**row, "sensitivity": sensitivities.by_layer.get(row["layer"])} for row in rows]


def _speed(
    exact: Candidate,
    saved: Saved,
    result: Mapping[str, Any],
    workload: Workload,
    config: CompressConfig,
    how: Mapping[str, Any],
) -> tuple[ModelComparison | None, dict[str, str]]:
    """Measures the saved model against float (or None); and gives reasons for missing engines."""
    most = 1 if has_pictures_in_text(workload.test) else len(workload.test)
    batch_sizes = [batch for batch in BATCH_SIZES if batch <= most]
    if not config.bench_seconds or not batch_sizes:
        return None, {}
    return compare_with_float(
        workload,
        exact.graph,
        saved.packed,
        file_bytes=(result["float_bytes"]["model.pt"], result["saved_bytes"]["model.pt"]),
        batch_sizes=batch_sizes,
        seconds=config.bench_seconds,
        why_not_compiled=f"{bench_command(config.out, config.model)} measures it",
        **how,
    )


def describe_packing(result: Mapping[str, Any]) -> str:
    """Describes the packed share of the parameters, and the float rest with reasons."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["float_layers"]:
        kind = "" if row["why_float"] == READ_DIRECTLY else row["kind"]
        groups.setdefault((kind, row["why_float"]), []).append(row)
    texts = [f"{result['packed_share']:.1%} of the parameters are packed."]
    for (kind, reason), rows in groups.items():
        names = rows[0]["layer"] + (f" ... {rows[-1]['layer']}" if len(rows) > 1 else "")
        elements = sum(row["elements"] for row in rows)
        subject = f"of {len(rows)} {kind} ({names})"
        reasons = f": {'each' if len(rows) > 1 else 'it'} {reason}"
        if not kind:
            parameters = [name for row in rows for name in row["parameters"]]
            subject, reasons = f"that {explained(reason, parameters)}", ""
        texts.append(f"{elements:,} numbers {subject} stay in float{reasons}.")
    return " ".join(texts)


def _format_sizes(result: Mapping[str, Any]) -> str:
    """Formats the sizes of the files in one line."""
    return f"Files: {describe_files(result)}; the weights file is {smaller(times_smaller(result))}."


def smaller(ratio: float) -> str:
    """Formats a ratio of sizes in words.

    >>> smaller(6.28), smaller(0.8), smaller(0.99)
    ('6.3x smaller', '1.2x larger', 'about the same size')
    """
    if f"{max(ratio, 1 / ratio):.1f}" == "1.0":
        return "about the same size"
    return f"{ratio:.1f}x smaller" if ratio >= 1 else f"{1 / ratio:.1f}x larger"


def describe_files(result: Mapping[str, Any]) -> str:
    """Lists the files of the saved and the float model with their sizes."""
    exact, saved = result["float_bytes"], result["saved_bytes"]
    texts = [
        f"{name} {saved[name] / 1000:,.1f} kB (float {exact[name] / 1000:,.1f} kB)"
        for name in MODEL_FILES
    ]
    if result["onnx"]:
        whole = float_onnx_bytes(result)
        size = f"{ONNX_FILE} {result['onnx']['size_bytes'] / 1000:,.1f} kB"
        texts.append(f"{size} (float {whole / 1000:,.1f} kB)" if whole else size)
    return ", ".join(texts)


def times_smaller(result: Mapping[str, Any]) -> float:
    """Returns the size of the float weights as a multiple of the saved file."""
    exact, saved = (result[name][MODEL_FILES[0]] for name in ("float_bytes", "saved_bytes"))
    return float(exact / saved)


def float_onnx_bytes(result: Mapping[str, Any]) -> int | None:
    """Returns the size of the float model's ONNX file; None if it was not measured."""
    peer = BACKENDS[ONNXRUNTIME].peer
    return next((row["file_bytes"] for row in result["speed"] if row["model"] == peer), None)
