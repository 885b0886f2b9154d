"""Fine-tuning by labels beside distillation from the float model, with the same steps.

    python benchmarks/distill.py                                  # all cases, five seeds
    python benchmarks/distill.py --models vit --cases 2-bit --seeds 2 --epochs 3
    python benchmarks/distill.py --ways alpha=1 alpha=0.5,temperature=4 alpha=1,hidden=cosine

Each seed has its own float model, row order and dropout. All ways start from the same rounded or
pruned model and take the same steps; learning rates are the defaults of `chop compress`. A
difference from labels is that of the pairs of a seed, with a 95 % interval of the bootstrap over
seeds. KL is the mean divergence of the answers to test rows from those of the float model. Finished
points are in OUT/points.jsonl, from which the same command resumes; the table is also in
OUT/table.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop import passes
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.compress.settings import default_operators
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.formats import parse_format_string
from chop.ir.graph import MaseGraph
from chop.runs import Journal
from chop.runs.environment import processor_name
from chop.statistics.intervals import bootstrap
from chop.train import TASKS, Distillation, fit
from chop.train.evaluator import Evaluator, kl_divergence
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload, raise_to_graph

Change = Callable[[Workload], MaseGraph]
LABELS, TASK = "labels", TASKS["classification"]
PRUNED = ("row", "head")
"""Removed units: rows of the feed-forward layers, then heads."""


def rounded(text: str, operands: Sequence[str], workload: Workload) -> MaseGraph:
    """The model with all weighted operators rounded to nearest in a format."""
    mg, number_format = raise_to_graph(workload), parse_format_string(text)
    return quantize_after_training(
        mg, number_format, default_operators(), workload, 256, operands=operands
    )


def pruned(share: float, workload: Workload) -> MaseGraph:
    """The model without a share of its rows and heads."""
    mg = raise_to_graph(workload)
    for granularity in PRUNED:
        weight = {"sparsity": share, "method": "l2-norm", "granularity": granularity}
        mg, _ = passes.prune_transform_pass(mg, {"weight": weight})
    return mg


ALL, WEIGHT = ("data_in", "weight", "bias"), ("weight",)
BY_CHANNEL = "scale_integer:width={}:granularity=channel"
CASES: dict[str, Change] = {
    "integer-4.2": functools.partial(rounded, "4.2", ALL),
    "3-bit": functools.partial(rounded, BY_CHANNEL.format(3), WEIGHT),
    "2-bit": functools.partial(rounded, BY_CHANNEL.format(2), WEIGHT),
    "prune-50": functools.partial(pruned, 0.5),
    "prune-75": functools.partial(pruned, 0.75),
}


def read_way(text: str) -> dict[str, Any] | None:
    """Settings of a distillation from `alpha=1,temperature=2`; None for `labels`."""
    if text == LABELS:
        return None
    pairs = (part.split("=") for part in text.split(",") if part != "defaults")
    return {name: value if name == "hidden" else float(value) for name, value in pairs}


def scores(
    mg: MaseGraph, exact: Tensor | None, workload: Workload
) -> tuple[dict[str, float], Tensor]:
    """Metric, loss and KL divergence from the float model on the test rows, and the answers."""
    evaluator = Evaluator(mg.model, workload.test, task=workload.task)
    logits = evaluator.logits()
    found = evaluator.scores(logits)
    metric, loss = found[workload.task.metric.name], found["loss"]
    kl = 0.0 if exact is None else kl_divergence(exact, logits)
    return {"metric": metric, "loss": loss, "kl": kl}, logits


def measure(
    change: Change, workload: Workload, way: Mapping[str, Any] | None, epochs: int, seed: int
) -> dict[str, float]:
    """Scores on test rows: of the float model, before training, and after it."""
    config = WorkloadConfig(model=workload.name, seed=seed)
    training = workload.tuning(epochs, None, config)
    (floats, exact), mg = scores(raise_to_graph(workload), None, workload), change(workload)
    before, _ = scores(mg, exact, workload)
    distill = None if way is None else {**way, "teacher": workload.model}
    fit(mg.model, workload.train, **training, task=workload.task, distill=distill)
    after, _ = scores(mg, exact, workload)
    return {"float": floats["metric"], "before": before["metric"], **after}


def with_interval(values: Sequence[float], form: str) -> str:
    """Mean over seeds with its interval."""
    numbers = torch.tensor(values, dtype=torch.float64)
    low, high = bootstrap(lambda i: numbers[i].mean().item(), len(numbers))
    return f"{numbers.mean().item():{form}} ({low:{form}} to {high:{form}})"


def mean(results: Sequence[Mapping[str, float]], name: str) -> float:
    """Mean of a number over seeds."""
    return sum(result[name] for result in results) / len(results)


def row(
    case: str, way: str, results: Sequence[Mapping[str, float]], labels: Sequence[Any]
) -> dict[str, str]:
    """Row of the table: means over seeds, and paired differences from training by labels."""
    pairs = list(zip(results, labels, strict=True))
    gained = [100 * (mine["metric"] - other["metric"]) for mine, other in pairs]
    lower = [mine["loss"] - other["loss"] for mine, other in pairs]
    nearer = [mine["kl"] - other["kl"] for mine, other in pairs]
    is_same = results is labels
    return {
        "case": case,
        "trained by": way,
        "float (%)": f"{100 * mean(results, 'float'):.1f}",
        "before (%)": f"{100 * mean(results, 'before'):.1f}",
        "after (%)": f"{100 * mean(results, 'metric'):.1f}",
        "KL": f"{mean(results, 'kl'):.3f}",
        "points over labels": "" if is_same else with_interval(gained, "+.2f"),
        "loss over labels": "" if is_same else with_interval(lower, "+.3f"),
        "KL over labels": "" if is_same else with_interval(nearer, "+.3f"),
    }


def main() -> None:
    """Measures the chosen cases and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["vit", "bert-tiny"])
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--ways", nargs="+", default=["defaults"], help="settings to compare")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/distill"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    journal, rows = Journal(args.out / "points.jsonl"), []
    load = functools.cache(
        lambda name, seed: load_workload(WorkloadConfig(model=name, seed=seed, out=args.out))
    )
    for name, case in itertools.product(args.models, args.cases):
        results: dict[str, list[dict[str, Any]]] = {}
        for way in (LABELS, *args.ways):
            for seed in range(args.seeds):
                given = read_way(way)
                record = None if given is None else Distillation(**given).record(TASK)
                point = {"model": name, "case": case, "seed": seed, "epochs": args.epochs}
                point["distill"] = record
                result = journal.find(point)
                if result is None:
                    numbers = measure(CASES[case], load(name, seed), record, args.epochs, seed)
                    result = journal.add(point, numbers)
                    print(point, result, flush=True)
                results.setdefault(way, []).append(result)
        rows += [
            row(f"{name} {case}", way, found, results[LABELS]) for way, found in results.items()
        ]
    text = f"{markdown_table(rows)}\n\n{args.seeds} seeds, {args.epochs} epochs, {processor_name()}"
    write_text(args.out / "table.md", f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
