"""Prune job: prunes a decoder to given sizes, measures it and writes a transformers folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from chop import runs
from chop.actions.evaluate.rows import JOURNAL, RowResult
from chop.actions.job import Job, Output, run_job
from chop.actions.next_steps import quoted
from chop.actions.prune.decoder import (
    NOTE,
    calibration_texts,
    compare,
    get_shape,
    load_decoder,
    load_step,
    measure_pruned,
    write_decoder,
)
from chop.actions.prune.settings import SIZES, PruneDecoderConfig
from chop.errors import ConfigError
from chop.pruning.decoder.prune import PrunedDecoder, prune_decoder
from chop.report.report import Cell, Note, Report, Step, Table, Tile, announce
from chop.runs import Journal, Outcome
from chop.runs.interrupt import describe_saved_points
from chop.runs.progress import Stages
from chop.train import fit
from chop.workloads.hf_folder import FOLDER, load_processor
from chop.workloads.workload import Training, Workload

PRUNED, TRAINED = "pruned", "trained"
"""Kinds of stages."""


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
    return load_decoder(config, workload, "chop prune")


def _prune(
    config: PruneDecoderConfig, workload: Workload, output: Output
) -> Report[dict[str, Any]]:
    _check_sizes(config, workload.model)
    announce(workload.title, "ranking and removing layers, channels and heads")
    texts = calibration_texts(workload, config.calibration_rows)
    pruned = prune_decoder(cast(Any, workload.model), texts, **config.sizes)
    training = workload.tuning(config.epochs, config.finetune_lr, config)
    trained = "distilled" if config.distill else "fine-tuned"
    results, journal = {}, Journal(output.folder / JOURNAL)
    subject = pruned.model, workload, config.batch_size, journal
    with Stages([PRUNED, *[TRAINED, PRUNED] * (training["epochs"] > 0)]) as stages:
        with stages.stage(PRUNED, "pruned") as advance:
            results["pruned"] = measure_pruned(*subject, advance)
        if training["epochs"]:
            with stages.stage(TRAINED, "training") as advance:
                _train(pruned, workload, training, advance)
            with stages.stage(PRUNED, trained) as advance:
                results[trained] = measure_pruned(*subject, advance)
    write_decoder(pruned.model, load_processor(config), output.results / FOLDER)
    return _report(config, workload, pruned, results)


def _check_sizes(config: PruneDecoderConfig, model: Any) -> None:
    """Raises ConfigError, with the option's name, for a size beyond the model's."""
    for name, field in SIZES.items():
        size, present = getattr(config, name), getattr(model.config, field, None)
        if size is not None and isinstance(present, int) and size > present:
            raise ConfigError(
                f"--{name.replace('_', '-')}: got {size}, and the model has {present} ({field}); "
                f"expected 1 to {present}."
            )


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
    rows, models = compare(workload, dict.fromkeys(results, get_shape(pruned.model)), results)
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
            load_step(config.out / FOLDER, pruned.model),
            Step(
                "Compress it",
                f"chop compress --model {quoted(config.out / FOLDER)} "
                f"--dataset {quoted(workload.dataset)}",
            ),
        ],
    )
