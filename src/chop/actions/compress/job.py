"""Compression job: evaluates each format, saves the smallest model within `max_drop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chop.actions.compress.measure import FLOAT, QUANTIZED, TRAINING, measure
from chop.actions.compress.ptq import (
    check_recipe,
    describe_skipped,
    method_title,
    quantize_after_training,
    quantize_layers,
)
from chop.actions.compress.report import about_rows, build_report
from chop.actions.compress.samples import check_samples, with_texts
from chop.actions.compress.saving import MODEL_FILES, save_model
from chop.actions.compress.settings import CompressConfig
from chop.actions.compress.table import (
    Candidate,
    about_operators,
    footnotes,
    outputs_tables,
    terminal_table,
)
from chop.actions.compress.verdict import list_points, write_verdict
from chop.actions.job import Job, Output, load_with_validation, run_job
from chop.errors import ConfigError
from chop.formats import parse_format_string
from chop.formats.recipe import Recipe
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.vision import check_has_vision, vision_modules
from chop.report.report import Note, Report, announce, say, show
from chop.runs.progress import Stages
from chop.train import Metric
from chop.train.rows import has_pictures_in_text
from chop.workloads.chance import check_scores, warn_about_large_drop
from chop.workloads.workload import Training, Workload, raise_to_graph

BACKWARD, ROUNDED = 3, 1.5
"""Cost of training on a row, and of rounding in training, as multiples of evaluating the row."""
SAVED_SHARE = 0.5
"""Training has saved a format when it wins back more than this share of what rounding lost."""


def compress(config: CompressConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Quantizes a model in several formats, trains the hardest one back, and writes it all down.

    Formats are chosen by their accuracy on validation rows; that on test rows is only reported.

    Writes into `config.out`: `model.pt` and `model.mz` (the smallest model within `max_drop` of
    float, its weights packed: `pack_transform_pass` unpacks them for training), the folder `model`
    where it is one of transformers, which loads it, `model.onnx` where ONNX has the formats,
    `graph.svg`, `accuracy.svg` (named by the metric), `table.md`, `result.json` and
    `manifest.json`. Where no format keeps within `max_drop`, and `keep_best` does not ask for one
    all the same, no model is saved: files of an earlier run's model stay.

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: what is in `result.json`; its `saved` is None where no model was saved.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model, the data set or a library is not there.
    """
    if config.by_block and workload is None:
        from chop.actions.compress.by_block import compress_by_block
        from chop.quantization.walk.values import NoBlocksError

        try:
            return compress_by_block(config)
        except NoBlocksError as error:
            say(f"{config.model} is compressed as a whole, not block by block: {error}.")
    return run_job(COMPRESS, config, workload)


def _compress(config: CompressConfig, workload: Workload, output: Output) -> Report[dict[str, Any]]:
    title, metric = workload.title, workload.task.metric
    if has_pictures_in_text(workload.train) and config.qat_epochs != 0:
        raise ConfigError(
            "--qat-epochs: texts with pictures are not trained on, as a graph takes one at a time; "
            "expected --qat-epochs 0."
        )
    check_samples(config, workload)
    if config.qat_epochs and not workload.task.can_train:
        raise ConfigError(
            "--qat-epochs: --evaluate judges the model, and no loss is known to train it by: give "
            "--loss file.py:fn or --task, or --qat-epochs 0."
        )
    announce(title, "raising the model to a graph")
    baseline, rounded, trained = _measure_all(config, workload)
    candidates = [baseline, *rounded, *trained]
    measured = show(
        terminal_table(f"{title}: {metric.title}", candidates, metric, workload.get_name("test")),
        *outputs_tables(f"{title}: outputs{workload.judged_on}", candidates, workload.task),
        *map(Note, footnotes(candidates)),
        Note(about_operators(candidates), is_written=False),
        Note(about_rows(workload, baseline.scores["test"])),
        Note(_about_training(rounded, trained, config, workload), is_written=False),
    )
    chosen = _smallest([*rounded, *trained], baseline, config.max_drop, metric)
    nearest = max([*rounded, *trained], key=lambda c: metric.key(c.row.validation))
    saved = chosen or (nearest if config.keep_best else None)
    files = None if saved is None else save_model(baseline, saved, workload, config, output.results)
    report = build_report(candidates, files, measured, workload, config)
    closing = [] if chosen else [_nothing_within(nearest, baseline, config, metric)]
    if saved is not None:
        if config.samples:
            report = with_texts(report, baseline, saved, workload, config)
        closing += [
            write_verdict(saved, baseline, report.result, workload),
            *list_points(report.result, config),
        ]
    return replace(report, closing=closing)


def _kept(config: CompressConfig) -> str:
    return (
        f"no results were written to {config.out}/, those of an earlier run are as they were; the "
        "same command starts again."
    )


COMPRESS = Job("compress", _compress, load_with_validation, _kept)


def _measure_all(
    config: CompressConfig, workload: Workload
) -> tuple[Candidate, list[Candidate], list[Candidate]]:
    """The float graph, the rounded ones, and those that were trained back."""
    mg = raise_to_graph(workload)
    recipe = _recipe(config, workload, mg)
    # A wrong name of a layer is found before anything is evaluated.
    check_recipe(mg, config.operators, recipe)
    mixed = (
        quantize_layers(mg, config.layers, workload, config.calibration_rows)
        if config.layers
        else None
    )
    kinds, steps = _expected(config, workload.task.can_train)
    with Stages(kinds, _costs(config, workload), steps) as stages:
        baseline = measure(mg, FLOAT, FLOAT, workload, stages)
        scores = {"": baseline.scores["test"]} if baseline.is_judged else baseline.scores
        check_scores(scores, workload, config)
        warn_about_large_drop(baseline.scores["validation"], workload, config.max_drop)
        rounded = [_round(mg, text, workload, config, recipe, stages) for text in config.formats]
        if mixed is not None:
            rounded.append(measure(mixed, "PTQ", "mixed", workload, stages))
        trained = _train_back(baseline, rounded, workload, config, stages)
    return baseline, rounded, trained


def _nothing_within(
    nearest: Candidate, exact: Candidate, config: CompressConfig, metric: Metric
) -> str:
    row, (mine, reference) = nearest.row, (c.scores["validation"] for c in (nearest, exact))
    lost = metric.format_loss(row.validation, exact.row.validation)
    where = "" if nearest.is_judged else " on the validation rows"
    outcome = (
        f"No format keeps within {metric.format_drop(config.max_drop)} of float{where}: the "
        f"nearest, {row.format} ({row.method}), loses {lost}, {mine.format(metric)} against "
        f"{reference.format(metric)}{f' on {mine.rows} rows' if mine.rows else ''}"
    )
    if config.keep_best:
        return f"{outcome}; it is saved because --keep-best asks for it."
    kept = "; the model in it is an earlier run's" if (config.out / MODEL_FILES[0]).exists() else ""
    return (
        f"{outcome}. No model was saved in {config.out}/{kept}. Give other --formats, more "
        "--qat-epochs or a larger --max-drop, or save it all the same with --keep-best."
    )


def _about_training(
    rounded: Sequence[Candidate],
    trained: Sequence[Candidate],
    config: CompressConfig,
    workload: Workload,
) -> str | None:
    """Why no format was trained back, where none was."""
    if trained:
        return None
    if config.qat_epochs == 0:
        return "No QAT: --qat-epochs is 0."
    if not workload.task.can_train:
        return (
            "No QAT: --evaluate judges the model, and no loss is known: --loss file.py:fn or "
            "--task gives one."
        )
    kept = "the format is" if len(rounded) == 1 else f"all {len(rounded)} formats are"
    where = "" if workload.judge else " on the validation rows"
    return f"No QAT: {kept} within --max-drop {config.max_drop:g} of float{where}."


def _expected(config: CompressConfig, can_train: bool) -> tuple[list[str], int]:
    """Kinds of stages, before it is known which formats are trained back, and how many steps.

    Training formats back is one step: how many it takes shows when they are measured.
    """
    formats = len(config.formats) + bool(config.layers)
    trained = (
        0 if config.qat_epochs == 0 or not can_train else formats if config.qat == "all" else 1
    )
    kinds = [FLOAT, *[QUANTIZED] * formats, *[TRAINING, QUANTIZED] * trained]
    return kinds, 1 + formats + bool(trained)


def _costs(config: CompressConfig, workload: Workload) -> dict[str, float]:
    """Returns the cost of each stage in evaluated rows. Training goes backward and rounds, too."""
    counts = [len(rows) for rows in (workload.validation, workload.test) if rows is not None]
    epochs = workload.tuning(config.qat_epochs, config.qat_lr, config)["epochs"]
    evaluated = sum(counts)
    trained = BACKWARD * epochs * len(workload.train)
    return {FLOAT: evaluated, QUANTIZED: ROUNDED * evaluated, TRAINING: max(1, ROUNDED * trained)}


def _recipe(config: CompressConfig, workload: Workload, mg: MaseGraph) -> Recipe:
    """What differs from each format; a vision tower that texts alone do not reach is float anyway.

    Raises:
        ConfigError: `skip_vision` of a model without a vision tower.
    """
    vision = vision_modules(workload.model)
    if config.skip_vision:
        check_has_vision(workload.model, "--skip-vision")
        say(f"--skip-vision leaves float: {', '.join(vision)}.")
    called = [f"{node.target}." for node in mg.nodes if node.op == "call_module"]
    reached = [path for path in vision if any(name.startswith(f"{path}.") for name in called)]
    if vision and not reached:
        say(f"The rows are texts without pictures: {', '.join(vision)} stay float and unused.")
    if not config.skip_vision:
        return config.recipe
    return replace(config.recipe, skip=(*config.recipe.skip, *reached))


def _round(
    mg: MaseGraph,
    text: str,
    workload: Workload,
    config: CompressConfig,
    recipe: Recipe,
    stages: Stages,
) -> Candidate:
    number_format = parse_format_string(text)
    # Rounding to nearest writes no weight: such candidates share those of the float graph.
    shares = not config.method
    skipped: dict[str, Mapping[str, str]] = {}
    quantized = quantize_after_training(
        mg.sharing_copy() if shares else mg,
        number_format,
        config.operators,
        workload,
        config.calibration_rows,
        config.method,
        inplace=shares,
        leaves_calls=config.has_default_operators,
        recipe=recipe,
        operands=config.operands,
        rotation=config.rotation,
        on_skipped=skipped.__setitem__,
    )
    method = method_title(config.method)
    label = number_format.label + (", overrides" if config.overrides else "")
    skipped_note = describe_skipped(quantized, skipped)
    return measure(quantized, method, label, workload, stages, left=skipped_note)


def _train_back(
    baseline: Candidate,
    rounded: Sequence[Candidate],
    workload: Workload,
    config: CompressConfig,
    stages: Stages,
) -> list[Candidate]:
    """Trains every format, or the hardest that lost too much, and the next if that is not saved."""
    exact, metric, trains_all = baseline.row.validation, workload.task.metric, config.qat == "all"
    lost = [
        candidate
        for candidate in rounded
        if trains_all or not metric.within(candidate.row.validation, exact, config.max_drop)
    ]
    lost.sort(key=lambda candidate: (candidate.row.bits, metric.key(candidate.row.validation)))
    training = workload.tuning(config.qat_epochs, config.qat_lr, config)
    if not lost or not training["epochs"] or not workload.task.can_train:
        stages.expect(())
        return []
    trained: list[Candidate] = []
    with stages.step():
        for number, candidate in enumerate(lost):
            remaining = len(lost) - number if trains_all else 1
            stages.expect([TRAINING, QUANTIZED] * remaining)
            trained.append(_trained(candidate, training, workload, stages))
            won = metric.gain(trained[-1].row.validation, candidate.row.validation)
            if not trains_all and won > SAVED_SHARE * metric.gain(exact, candidate.row.validation):
                break
    return trained


def _trained(
    candidate: Candidate, training: Training, workload: Workload, stages: Stages
) -> Candidate:
    """A candidate after training with rounding, measured."""
    graph, label = candidate.graph.copy(), candidate.row.format
    with stages.stage(TRAINING, f"training {label}") as advance:
        workload.fit(graph.model, training, advance)
    return measure(graph, "QAT", label, workload, stages)


def _smallest(
    candidates: Sequence[Candidate], exact: Candidate, max_drop: float, metric: Metric
) -> Candidate | None:
    """The smallest that is not much worse than float on validation rows; None if none is."""
    least = exact.row.validation
    good = [c for c in candidates if metric.within(c.row.validation, least, max_drop)]
    return min(good, key=lambda c: (c.row.bits, -metric.key(c.row.validation)), default=None)
