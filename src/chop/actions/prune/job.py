"""Prune job: prunes a decoder to given sizes, measures it and writes a transformers folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from chop import runs
from chop.actions.evaluate.job import get_identity
from chop.actions.evaluate.models import Judged
from chop.actions.evaluate.rows import (
    JOURNAL,
    Measured,
    RowResult,
    get_result,
    judge_models,
    measure_rows,
)
from chop.actions.job import Job, Output, run_job
from chop.actions.next_steps import quoted
from chop.actions.prune.settings import SIZES, PruneDecoderConfig
from chop.base.files import atomic_files
from chop.errors import ConfigError
from chop.pruning.decoder.prune import PrunedDecoder, prune_decoder
from chop.report.report import Cell, Note, Report, Step, Table, Tile, announce
from chop.runs import Journal, Outcome
from chop.runs.interrupt import describe_saved_points
from chop.runs.progress import Stages
from chop.train import CAUSAL_LM, fit
from chop.train.calibration import calibration_batches
from chop.train.intervals import format_cell
from chop.workloads.fingerprints import fingerprint_of_code, fingerprint_of_rows
from chop.workloads.hf_folder import FOLDER, load_processor
from chop.workloads.load import workload_for
from chop.workloads.workload import Training, Workload

BATCH = 8
"""Number of texts per calibration batch."""
PRUNED, TRAINED = "pruned", "trained"
"""Kinds of stages."""
NOTE = (
    "In brackets: 95 % interval over the rows. KL: mean divergence of the answers from the "
    "original's, in nats."
)


def prune(config: PruneDecoderConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Prunes a decoder to given sizes, and compares it with the original on test rows.

    With `config.distill`, the pruned model is trained against the original.

    Writes into `config.out`: the folder `model`, which transformers loads without chop, `table.md`,
    `result.json`, `manifest.json`, and `answers.jsonl` (measured rows, from which the same command
    resumes; training starts again).

    Args:
        config: settings of the job.
        workload: a trained model and rows of your own, see `Workload.of`. Default: the model and
            data that `config` names.
    Returns: the content of `result.json`.
    Raises:
        ConfigError: if settings do not fit together, or the model cannot be pruned.
        UnavailableError: if the model or the data set is missing.
        WriteError: if the disk is full or read-only.
    """
    return run_job(PRUNE, config, workload)


def _load(config: PruneDecoderConfig, workload: Workload | None) -> Workload:
    loaded = workload_for(config, workload)
    if loaded.task.name != CAUSAL_LM:
        raise ConfigError(
            f"chop prune: expected a language model, and '{loaded.name}' is a model for "
            f"{loaded.task.name}; passes.prune_transform_pass prunes other models."
        )
    return loaded


def _prune(
    config: PruneDecoderConfig, workload: Workload, output: Output
) -> Report[dict[str, Any]]:
    announce(workload.title, "ranking and removing layers, channels and heads")
    texts = calibration_batches(
        workload.model, workload.train, rows=config.calibration_rows, batch_size=BATCH
    )
    pruned = prune_decoder(cast(Any, workload.model), texts, **config.sizes)
    training = workload.tuning(config.epochs, config.finetune_lr, config)
    trained = "distilled" if config.distill else "fine-tuned"
    results = {}
    with Stages([PRUNED, *[TRAINED, PRUNED] * (training["epochs"] > 0)]) as stages:
        with stages.stage(PRUNED, "pruned") as advance:
            results["pruned"] = _measure(pruned, config, workload, output, advance)
        if training["epochs"]:
            with stages.stage(TRAINED, "training") as advance:
                _train(pruned, workload, training, advance)
            with stages.stage(PRUNED, trained) as advance:
                results[trained] = _measure(pruned, config, workload, output, advance)
    processor = load_processor(config)
    with atomic_files(output.results / FOLDER, "model") as folder:
        pruned.model.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
    return _report(config, workload, pruned, results)


def _measure(
    pruned: PrunedDecoder,
    config: PruneDecoderConfig,
    workload: Workload,
    output: Output,
    advance: Callable[[float], None],
) -> RowResult:
    """Measures the pruned model and its distance from the original on test rows, with a journal."""
    names = {"model": get_identity(pruned.model), "reference": get_identity(workload.model)}
    judged = Judged(pruned.model, workload.model, workload.name, workload, None)
    journal = Journal(output.folder / JOURNAL)
    if workload.judge is not None:
        code = {"evaluate": fingerprint_of_code(workload.judge.code), "model": names["model"]}
        return judge_models(judged, workload.judge, journal, code, names["reference"])
    task = {"task": workload.task.name, "metric": workload.task.metric.name}
    key = {"rows": fingerprint_of_rows(workload.test), **task, **names}
    entries = measure_rows(judged, workload.test, config.batch_size, journal, key, advance)
    return get_result(entries, workload.task)


def _train(
    pruned: PrunedDecoder, workload: Workload, training: Training, advance: Callable[[float], None]
) -> None:
    """Trains the pruned model, with a teacher also its layers against those that they were."""
    arguments = workload.get_arguments(training)
    if "distill" in arguments:
        arguments["distill"] = replace(arguments["distill"], matched=pruned.matched)
    arguments |= {"device": workload.device, "task": workload.task, "progress": advance}
    fit(pruned.model, workload.train, **arguments)


PRUNE = Job("prune", _prune, _load, lambda config: describe_saved_points(config.out / JOURNAL))


def _shape(model: Any, parameters: int) -> dict[str, Any]:
    """Returns the sizes of a decoder and its number of parameters."""
    sizes = {name: getattr(model.config, field, None) for name, field in SIZES.items()}
    return {**sizes, "parameters": parameters}


def _numbers(name: str, measured: Measured | None) -> dict[str, Any]:
    """Returns a number with its interval, by name for the result."""
    interval = None if measured is None or measured.interval is None else [*measured.interval]
    return {name: None if measured is None else measured.value, f"{name}_interval_95": interval}


def _report(
    config: PruneDecoderConfig,
    workload: Workload,
    pruned: PrunedDecoder,
    results: Mapping[str, RowResult],
) -> Report[dict[str, Any]]:
    metric, parameters = workload.task.metric.name, pruned.parameters
    layers = [
        {"layer": number, "block_influence": influence, "removed": number not in pruned.layers}
        for number, influence in enumerate(pruned.block_influence)
    ]
    last = [*results.values()][-1]
    assert last.reference is not None, "measured with the original"
    equal = None if last.kl is None else Measured(0.0, None)
    measured: dict[str, tuple[Measured, Measured | None]] = {"original": (last.reference, equal)}
    measured |= {name: (each.own, each.kl) for name, each in results.items()}
    shapes = [_shape(workload.model, parameters[0])]
    shapes += [_shape(pruned.model, parameters[1])] * len(results)
    rows = [
        {"model": name, **shape, **_numbers(metric, score), **_numbers("kl", kl)}
        for (name, (score, kl)), shape in zip(measured.items(), shapes, strict=True)
    ]
    models = [
        {
            "model": name,
            **shape,
            metric: format_cell(score.value, score.interval, workload.task.metric),
            "KL": Cell.of(None if kl is None else kl.value, ".4g"),
        }
        for (name, (score, kl)), shape in zip(measured.items(), shapes, strict=True)
    ]
    result = {
        "config": {**runs.as_json(config), "model": workload.name},
        "models": rows,
        "layers": layers,
    }
    before, after = last.reference.value, last.own.value
    share = 1 - parameters[1] / parameters[0]
    verdict = (
        f"{share:.1%} of the parameters are removed; {metric} on {workload.count_test()} is "
        f"{after:.4g}, and {before:.4g} before."
    )
    title = f"{workload.title}, pruned"
    influences = [{**row, "block_influence": f"{row['block_influence']:.4f}"} for row in layers]
    tables = [Table(title, models), Note(NOTE), Note(verdict)]
    if layers:
        tables.append(Table("Block influence", influences, is_detail=True))
    return Report(
        title,
        {"table.md": tables},
        result,
        rows,
        verdict=verdict,
        closing=[f"The pruned model is in {config.out / FOLDER}/."],
        tiles=[
            Tile("parameters", Cell.of(parameters[1], ","), f"of {parameters[0]:,}"),
            Tile(metric, Cell.of(after, ".4g"), f"{before:.4g} before"),
        ],
        outcome=Outcome(
            workload.dataset,
            metric,
            after,
            before,
            size_bytes=sum(x.nbytes for x in pruned.model.parameters()),
        ),
        steps=[
            Step(
                "Load it with transformers, without chop",
                f"from transformers import {type(pruned.model).__name__}\n\n"
                f"model = {type(pruned.model).__name__}.from_pretrained("
                f"{str(config.out / FOLDER)!r})",
            ),
            Step(
                "Compress it",
                f"chop compress --model {quoted(config.out / FOLDER)} "
                f"--dataset {quoted(workload.dataset)}",
            ),
        ],
    )
