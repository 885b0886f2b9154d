"""Prune job: prunes a decoder to given sizes, measures it and writes a transformers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop import runs
from chop.actions.job import Job, Output, run_job
from chop.actions.next_steps import quoted
from chop.actions.prune.settings import SIZES, PruneDecoderConfig
from chop.base.files import atomic_files
from chop.errors import ConfigError
from chop.pruning.decoder.prune import PrunedDecoder, prune_decoder
from chop.report.report import Cell, Note, Report, Step, Table, Tile, announce
from chop.runs import Outcome
from chop.train import CAUSAL_LM
from chop.train.calibration import calibration_batches
from chop.workloads.hf_folder import FOLDER, load_processor
from chop.workloads.load import workload_for
from chop.workloads.workload import Workload

BATCH = 8
"""Number of texts per calibration batch."""


def prune(config: PruneDecoderConfig, workload: Workload | None = None) -> dict[str, Any]:
    """Prunes a decoder to given sizes, and compares it with the original on test rows.

    Writes into `config.out`: the folder `model`, which transformers loads without chop, `table.md`,
    `result.json` and `manifest.json`.

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
    model: Any = workload.model
    pruned = prune_decoder(model, texts, **config.sizes)
    announce(workload.title, "measuring the pruned model")
    scores = {
        "original": workload.evaluate(model, workload.test),
        "pruned": workload.evaluate(pruned.model, workload.test),
    }
    processor = load_processor(config)
    with atomic_files(output.results / FOLDER, "model") as folder:
        pruned.model.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
    return _report(config, workload, pruned, scores)


PRUNE = Job("prune", _prune, _load)


def _report(
    config: PruneDecoderConfig,
    workload: Workload,
    pruned: PrunedDecoder,
    scores: Mapping[str, float],
) -> Report[dict[str, Any]]:
    metric, parameters = workload.task.metric.name, pruned.parameters
    layers = [
        {"layer": number, "block_influence": influence, "removed": number not in pruned.layers}
        for number, influence in enumerate(pruned.block_influence)
    ]
    configs: Any = (workload.model.config, pruned.model.config)
    rows = [
        {
            "model": name,
            **{size: getattr(each, field, None) for size, field in SIZES.items()},
            "parameters": count,
            metric: score,
        }
        for (name, score), each, count in zip(scores.items(), configs, parameters, strict=True)
    ]
    result = {
        "config": {**runs.as_json(config), "model": workload.name},
        "models": rows,
        "layers": layers,
    }
    share = 1 - parameters[1] / parameters[0]
    verdict = (
        f"{share:.1%} of the parameters are removed; {metric} on {workload.count_test()} is "
        f"{scores['pruned']:.4g}, and {scores['original']:.4g} before."
    )
    title = f"{workload.title}, pruned"
    models = [{**row, metric: Cell.of(row[metric], ".4g")} for row in rows]
    influences = [{**row, "block_influence": f"{row['block_influence']:.4f}"} for row in layers]
    tables = [Table(title, models), Note(verdict)]
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
            Tile(metric, Cell.of(scores["pruned"], ".4g"), f"{scores['original']:.4g} before"),
        ],
        outcome=Outcome(
            workload.dataset,
            metric,
            scores["pruned"],
            scores["original"],
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
