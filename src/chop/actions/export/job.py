"""Export job: writes a graph for other engines, reads each file back and verifies it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.export.model import Loaded, is_gguf, load_graph
from chop.actions.export.proof import (
    MOST_DYNAMIC,
    Contestant,
    WeightProof,
    check_unrounded,
    compare_on_rows,
    compare_weights,
    exact_graph,
    example_difference,
    largest_share,
)
from chop.actions.export.report import (
    Exported,
    RowResult,
    change_tables,
    check_changes,
    time_blocks,
)
from chop.actions.export.settings import ExportConfig
from chop.actions.export.times import CHOP, FLOAT, Times, measure_times
from chop.actions.job import Job, Output, load_nothing, run_job
from chop.actions.next_steps import steps_with_files
from chop.bench.timing import surroundings
from chop.errors import ChopError
from chop.export.nearest import Change, nearest_graph
from chop.export.packed_model import get_runner
from chop.export.target import Runner, Written
from chop.export.targets import target
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.card import COMMAND, COMPUTED, MAKING, add_rows, card_rows, code
from chop.ir.huggingface.card import FILE as CARD
from chop.ir.storage.checkpoint import FILE_IN_RUN
from chop.report.charts.ratios import ratio_charts
from chop.report.command_line import command_line
from chop.report.report import Block, Cell, Note, Report, Table, Tile, announce, figure
from chop.runs import Outcome
from chop.runs.progress import Stages

CHECKING, WRITING, READING, RUNNING, TIMING = "checking", "writing", "reading", "running", "timing"
"""Kinds of stages; stages of a kind take about equally long."""
PRINTED = ("target", "file", "size", "weights equal", "largest difference")
"""Columns that fit a terminal."""


@dataclass(frozen=True)
class Plan:
    """Graph to write for a target.

    Attributes:
        graph: graph in formats that the target supports.
        changes: modules that were rounded to another format for it.
    """

    graph: MaseGraph
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class _Proven:
    """File that was written and read back.

    Attributes:
        plan: the graph to write.
        written: the files.
        run: the file, run by the target's library.
        difference: largest difference of outputs on the example inputs.
        weights: see `Exported`.
    """

    plan: Plan
    written: Written
    run: Runner
    difference: float
    weights: WeightProof | None


def export(config: ExportConfig) -> list[Exported]:
    """Writes files for each target to `config.out`, and verifies them with the target's library.

    Raises:
        ConfigError: if the model is not quantized, or a target does not support it; no files are
            written.
        VerificationError: if an engine's outputs differ from the graph's.
        UnavailableError: if the model or a library is missing.
    """
    return run_job(EXPORT, config)


def _export(config: ExportConfig, workload: None, output: Output) -> Report[list[Exported]]:
    loaded = load_graph(config)
    announce(config.model, f"exporting to {', '.join(config.to)}")
    with Stages(_expected(config, loaded)) as stages:
        plans = _plans(config, loaded, stages)
        written = _write(loaded, plans, output.folder, stages)
        exact = {id(mg): exact_graph(mg) for mg in _graphs(plans, loaded)}
        proven = _read(config, plans, written, exact, stages)
        rows = _on_rows(config, loaded, proven, exact, stages)
        _write_cards(config, loaded, proven, rows)
        times = _timed(config, loaded, proven, stages)
    return _report(config, loaded, proven, rows, times)


EXPORT = Job("export", _export, load_nothing)


def _expected(config: ExportConfig, loaded: Loaded) -> list[str]:
    count, timed = len(config.to), any(target(name).is_timed for name in config.to)
    kinds = [CHECKING, WRITING, READING]
    stages = [kind for kind in kinds for _ in range(count)]
    stages += [] if loaded.workload is None else [RUNNING]
    return stages + [TIMING] * (len(config.batch_sizes) if timed and config.seconds else 0)


def _plans(config: ExportConfig, loaded: Loaded, stages: Stages) -> dict[str, Plan]:
    """Returns the plan of each target, before any files are written.

    Raises:
        ConfigError: if a target does not support modules; lists them with the nearest formats.
    """
    plans: dict[str, Plan] = {}
    for name in config.to:
        with stages.stage(CHECKING, f"checking the formats of {name}"):
            plans[name] = _plan(name, loaded)
    check_changes({name: plan.changes for name, plan in plans.items()}, config.nearest)
    return plans


def _plan(name: str, loaded: Loaded) -> Plan:
    try:
        graph, changes = nearest_graph(target(name), loaded.mg, loaded.source)
    except ChopError as error:
        text = str(error).removeprefix(f"{name}: ")
        raise type(error)(f"{name}: {text}\nNo files were written.") from error
    return Plan(graph, tuple(changes))


def _graphs(plans: Mapping[str, Plan], loaded: Loaded) -> list[MaseGraph]:
    """Returns the graph of the model and those of targets with other graphs, each once."""
    graphs = [loaded.mg, *(plan.graph for plan in plans.values())]
    return [*{id(mg): mg for mg in graphs}.values()]


def _write(
    loaded: Loaded, plans: Mapping[str, Plan], folder: Path, stages: Stages
) -> dict[str, Written]:
    written: dict[str, Written] = {}
    for name, plan in plans.items():
        with stages.stage(WRITING, f"writing {name}"):
            written[name] = _written(name, plan.graph, loaded.tokenizer, folder, written)
    return written


def _written(
    name: str, mg: MaseGraph, tokenizer: Any, folder: Path, before: Iterable[str]
) -> Written:
    """Writes the files of a target; an error names the files already written."""
    kind = target(name)
    try:
        return kind.export(mg, folder / (kind.stem if kind.suffix else name), tokenizer)
    except ChopError as error:
        if not (finished := ", ".join(before)):
            raise
        raise type(error)(f"{error}\nThe files of {finished} are complete.") from error


def _read(
    config: ExportConfig,
    plans: Mapping[str, Plan],
    written: Mapping[str, Written],
    exact: Mapping[int, MaseGraph],
    stages: Stages,
) -> dict[str, _Proven]:
    """Reads files with the targets' libraries, and compares outputs and weights with the graph."""
    proven: dict[str, _Proven] = {}
    for name, made in written.items():
        kind, plan = target(name), plans[name]
        with (
            stages.stage(READING, f"reading {name} by {kind.library}"),
            surroundings(config.threads, inference=True),
        ):
            run = kind.read(made.path)
            # With unrounded inputs, the writer has already compared the file without roundings.
            most = MOST_DYNAMIC if made.cause else largest_share(plan.graph)
            difference = example_difference(exact[id(plan.graph)], run, kind, most)
            check_unrounded(plan.graph, made.path, kind)
            given = None if kind.weights is None else kind.weights(made.path)
            weights = None if given is None else compare_weights(plan.graph, given)
        proven[name] = _Proven(plan, made, run, difference, weights)
    return proven


def _on_rows(
    config: ExportConfig,
    loaded: Loaded,
    proven: Mapping[str, _Proven],
    exact: Mapping[int, MaseGraph],
    stages: Stages,
) -> dict[str, RowResult]:
    """Evaluates all models on the test rows; returns {} if no rows are known."""
    workload = loaded.workload
    if workload is None:
        return {}
    rows = workload.test if config.limit is None else workload.test.spread(config.limit)
    own = {id(loaded.mg): CHOP}
    contestants = [
        Contestant(CHOP, get_runner(exact[id(loaded.mg)].model), CHOP),
        Contestant(FLOAT, get_runner(loaded.exact), CHOP),
    ]
    for name, each in proven.items():
        key = id(each.plan.graph)
        if key not in own:
            own[key] = f"{CHOP} for {name}"
            contestants.append(Contestant(own[key], get_runner(exact[key].model), CHOP))
        contestants.append(Contestant(name, each.run, own[key]))
    with (
        stages.stage(RUNNING, f"comparing {workload.count_test(len(rows))}") as advance,
        surroundings(config.threads, inference=True),
    ):
        proofs = compare_on_rows(contestants, loaded.mg, workload, rows, advance)
    return {name: RowResult.of(name, x, workload, len(rows)) for name, x in proofs.items()}


def _write_cards(
    config: ExportConfig,
    loaded: Loaded,
    proven: Mapping[str, _Proven],
    rows: Mapping[str, RowResult],
) -> None:
    """Adds the facts in the run's card, and the results on test rows, to the cards of folders."""
    command, run = command_line(sys.argv), Path(config.model).expanduser() / FILE_IN_RUN
    base = str(run) if run.is_dir() else config.model
    known = {x: text for x, text in card_rows(Path(base) / CARD).items() if x not in COMPUTED}
    for name, each in proven.items():
        # A run has measured other weights than those of changed modules.
        facts = {x: text for x, text in known.items() if not each.plan.changes or x in MAKING}
        if loaded.workload is not None and name in rows:
            metric, counted = loaded.workload.task.metric, rows[name].score.rows
            mine, reference = (rows[x].score.format(metric) for x in (name, FLOAT))
            where = f"{loaded.workload.count_test(counted)} of {loaded.workload.dataset}"
            facts[metric.title] = f"{mine} on {where}; float {reference}"
        commands = [facts.get(COMMAND), code(command) if command.startswith("chop ") else None]
        facts[COMMAND] = ", then ".join(filter(None, commands))
        add_rows(each.written.path, facts, base)


def _timed(
    config: ExportConfig, loaded: Loaded, proven: Mapping[str, _Proven], stages: Stages
) -> Times:
    runners = {name: each.run for name, each in proven.items() if target(name).is_timed}
    return measure_times(
        loaded, runners, config, lambda batch: stages.stage(TIMING, f"timing batch {batch}")
    )


def _report(
    config: ExportConfig,
    loaded: Loaded,
    proven: Mapping[str, _Proven],
    rows: Mapping[str, RowResult],
    times: Times,
) -> Report[list[Exported]]:
    exported = [
        Exported(
            name,
            str(each.written.path),
            each.written.size_bytes,
            each.difference,
            each.weights,
            rows.get(name),
            tuple(timed for timed in times.rows if timed.engine == name),
            each.plan.changes,
            each.written.notes,
            each.written.cause,
        )
        for name, each in proven.items()
    ]
    title = f"{config.model} for other engines"
    blocks = [
        *change_tables(exported),
        Table(title, [row.formatted() for row in exported], columns=PRINTED),
        Note(
            "Weights equal: packed weights that the library decodes to the graph's values. Largest "
            "difference: between outputs of file and graph on the example inputs."
        ),
        *_row_blocks(loaded, rows),
        *time_blocks(times, loaded.exact_is),
        *(Note(f"{row.target}: {text}.") for row in exported for text in row.sentences),
        Note(_about_tokenizer(config, loaded)),
    ]
    return Report(
        title,
        {"table.md": blocks},
        exported,
        [row.numbers() for row in exported],
        figures={
            f"times-batch-{batch}.svg": figure(
                ratio_charts, each, f"{title}: speed at batch {batch}", each.baseline
            )
            for batch, each in times.by_batch.items()
        },
        files={f"times-batch-{batch}.json": each.save for batch, each in times.by_batch.items()},
        result_file="",
        written=[file for each in proven.values() for file in each.written.files],
        verdict=f"Wrote {config.model} for {', '.join(row.target for row in exported)}. The files "
        "were read back and compared with the graph.",
        warnings=[f"{row.target}: {text}." for row in exported for text in row.sentences],
        tiles=[
            Tile(f"{row.target} (kB)", Cell.of(row.size_bytes / 1000, ",.1f")) for row in exported
        ],
        outcome=_outcome(exported, rows, loaded),
        steps=steps_with_files(
            {f"For {target(row.target).engines}": Path(row.path) for row in exported}
        ),
    )


def _outcome(
    exported: Sequence[Exported], rows: Mapping[str, RowResult], loaded: Loaded
) -> Outcome:
    """Returns the numbers for a list of runs: the first target on the test rows, against float."""
    size = exported[0].size_bytes if len(exported) == 1 else None
    workload, batches = loaded.workload, rows.get(exported[0].target)
    if workload is None or batches is None:
        return Outcome("", size_bytes=size)
    metric, exact = workload.task.metric, rows.get(FLOAT)
    return Outcome(
        data=workload.dataset,
        metric=metric.name,
        value=batches.score.value,
        reference=None if exact is None else exact.score.value,
        is_share=metric.is_share,
        size_bytes=size,
    )


def _row_blocks(loaded: Loaded, rows: Mapping[str, RowResult]) -> list[Block]:
    workload = loaded.workload
    if workload is None:
        why = loaded.why_no_rows
        return [Note(None if why is None else f"Test rows were not compared: {why}")]
    count = next(iter(rows.values())).score.rows
    return [
        Table(
            f"{workload.title}: {workload.task.metric.title}, {workload.count_test(count)}",
            [row.formatted(workload) for row in rows.values()],
        ),
        Note(
            f"{CHOP}: the quantized graph in torch; {FLOAT}: {loaded.exact_is}. Same answers and "
            "largest difference: against the exported graph; for float and for graphs with "
            f"re-rounded modules, against {CHOP}."
        ),
    ]


def _about_tokenizer(config: ExportConfig, loaded: Loaded) -> str | None:
    if not config.tokenizer or loaded.tokenizer is not None or not is_gguf(config.model):
        return None
    return f"No tokenizer was written: transformers found no tokenizer in '{config.model}'."
