"""Fine-tuning by labels beside distillation from the float model, with the same steps.

    python benchmarks/distill.py                                  # vit, five cases, five seeds
    python benchmarks/distill.py --model ./bert --dataset ./imdb --limit 2500 --max-length 48 \\
        --epochs 5 --lr 5e-4 --cases 3-bit 2-bit
    python benchmarks/distill.py --judge validation --settings alpha=1 alpha=0.5,hidden=mse

A seed draws the training rows, their order and dropout. All settings of a seed start from the same
rounded or pruned model and take the same steps with the same learning rate (`--lr`). KL is the mean
divergence of the answers from those of the float model. A difference from labels is the mean over
seeds with its 95 % t interval. Settings are chosen with `--judge validation` and other seeds than
those of the table. Finished points are in OUT/points.jsonl, from which the same command resumes;
the table is also in OUT/table.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student
from torch import nn

from chop import passes
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.compress.settings import default_operators
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.formats import parse_format_string
from chop.ir.graph import MaseGraph
from chop.runs import Journal
from chop.runs.environment import processor_name
from chop.statistics.intervals import LEVEL
from chop.train import TASKS, Distillation, fit
from chop.train.evaluator import Evaluator, kl_divergence
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload, raise_to_graph

Change = Callable[[Workload], MaseGraph]
LABELS, TASK = "labels", TASKS["classification"]
SHARED = ("model", "dataset", "limit", "max_length", "rows", "epochs", "lr", "judge")
"""Arguments that are part of the key of a point."""
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


def read_settings(text: str) -> dict[str, Any] | None:
    """Settings of a distillation from `alpha=1,temperature=2`; None for `labels`."""
    if text == LABELS:
        return None
    pairs = (part.split("=") for part in text.split(",") if part != "defaults")
    given: dict[str, Any] = {
        name: value if name == "hidden" else float(value) for name, value in pairs
    }
    return Distillation(**given).record(TASK, compares_layers=True)


class Subject:
    """Float model with its rows, and the models that training starts from.

    Args:
        args: the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.config = WorkloadConfig(
            model=args.model,
            dataset=args.dataset,
            limit=args.limit,
            max_length=args.max_length,
            out=args.out,
        )
        self.workload = load_workload(self.config)
        judged = self.workload.test if args.judge == "test" else self.workload.validation
        assert judged is not None, "workloads have validation rows"
        self.judged, self.args = judged, args
        self.exact = Evaluator(self.workload.model, judged, task=self.workload.task).logits()
        self.start = functools.cache(lambda case: CASES[case](self.workload))

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Metric, loss and KL divergence from the float model."""
        evaluator = Evaluator(model, self.judged, task=self.workload.task)
        logits = evaluator.logits()
        numbers = evaluator.scores(logits)
        metric = numbers[self.workload.task.metric.name]
        return {"metric": metric, "loss": numbers["loss"], "kl": kl_divergence(self.exact, logits)}

    def measure(self, case: str, settings: Mapping[str, Any] | None, seed: int) -> dict[str, float]:
        """Scores after training."""
        mg, train = self.start(case).copy(), self.workload.train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        training: dict[str, Any] = {
            **self.workload.tuning(self.args.epochs, self.args.lr, replace(self.config, seed=seed)),
            "distill": None if settings is None else {**settings, "teacher": self.workload.model},
        }
        rows = train.take(order[: self.args.rows])
        fit(mg.model, rows, **training, task=self.workload.task)
        return self.scores(mg.model)


def difference(mine: Sequence[Any], labels: Sequence[Any], name: str, form: str) -> str:
    """Mean difference of a number over the pairs of a seed, with its t interval."""
    values = [x[name] - y[name] for x, y in zip(mine, labels, strict=True)]
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:{form}}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    low, high = (mean + end * error for end in student.interval(LEVEL, len(values) - 1))
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"


def row(case: str, label: str, results: Sequence[Any], labels: Sequence[Any]) -> dict[str, str]:
    """Row of the table: means over seeds, and paired differences from training by labels."""
    metric, kl = (statistics.fmean(each[name] for each in results) for name in ("metric", "kl"))
    is_same = results is labels
    return {
        "case": case,
        "trained by": label,
        "metric": f"{metric:.1%}",
        "KL": f"{kl:.3f}",
        "metric over labels": "" if is_same else difference(results, labels, "metric", "+.1%"),
        "KL over labels": "" if is_same else difference(results, labels, "kl", "+.3f"),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vit", help="built-in name or folder")
    parser.add_argument("--dataset", help="folder or file, for models that are not built in")
    parser.add_argument("--limit", type=int, help="rows to read from each split")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--settings", nargs="+", default=["defaults"], help="settings to compare")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rows", type=int, default=256, help="training rows of a seed")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, help="learning rate; by default that of chop compress")
    parser.add_argument("--judge", choices=("test", "validation"), default="test")
    parser.add_argument("--out", type=Path, default=Path("runs/distill"))
    return parser.parse_args()


def main() -> None:
    """Measures the chosen cases and writes the table."""
    args = arguments()
    torch.set_num_threads(1)
    journal, subject = Journal(args.out / "points.jsonl"), Subject(args)
    shared = {name: getattr(args, name) for name in SHARED}
    labels = (LABELS, *args.settings)
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed, case, label in itertools.product(args.seeds, args.cases, labels):
        record = read_settings(label)
        point = {**shared, "case": case, "seed": seed, "distill": record}
        result = journal.find(point)
        if result is None:
            result = journal.add(point, subject.measure(case, record, seed))
            print(seed, case, label, result, flush=True)
        results.setdefault((case, label), []).append(result)
    rows = [row(*key, found, results[key[0], LABELS]) for key, found in results.items()]
    starts = {case: subject.scores(subject.start(case).model) for case in args.cases}
    before = ", ".join(f"{case} {each['metric']:.1%}" for case, each in starts.items())
    exact = subject.scores(subject.workload.model)["metric"]
    text = (
        f"{markdown_table(rows)}\n\nFloat model {exact:.1%}; before training: {before}. "
        f"{len(args.seeds)} seeds, {args.rows} training rows, {args.epochs} epochs, "
        f"{len(subject.judged)} {args.judge} rows, {processor_name()}"
    )
    write_text(args.out / "table.md", f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
