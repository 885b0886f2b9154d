"""Formats layer by layer, with and without a search, beside one width everywhere.

    python benchmarks/mixed_precision.py --data FOLDER --out runs/mixed-precision

FOLDER holds `bert-tiny-imdb` and `imdb` (reviews), `resnet-cifar10/resnet20.safetensors` and
`cifar10-jpeg/{test,train10k}.parquet` (photographs). Integers, weights and inputs of every layer
with a matrix, biases in 8 bits, fractions derived. For each budget: what needs no search, then
searches of 40 and 100 trials that begin with it, and with the uniform widths alone. Trials see
training rows only; `test` is of test rows, and gains are counted on the first row of the budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from resnet20 import ResNet20, read_pictures
from safetensors.torch import load_file
from torch import nn

from chop.data import get_tokenized_dataset
from chop.models import load_model
from chop.problems.mixed_precision import PrecisionProblem
from chop.problems.mixed_precision.warm_start import SHARE, uniforms_within, warm_start
from chop.report.measured import MeasuredTable
from chop.search import Config, Constraint, Goal, Search
from chop.train import Rows, default_dataset, fit, read_rows
from chop.train.evaluator import Evaluator, kl_divergence
from chop.workloads.workload import Workload, raise_to_graph

TRIALS = (40, 100)


def reviews(args: argparse.Namespace) -> Workload:
    """BERT-tiny and IMDb, 256 tokens."""
    folder = args.data / "bert-tiny-imdb"
    model = load_model(folder, num_labels=2).eval()
    splits = get_tokenized_dataset(args.data / "imdb", folder, max_length=256, limit=args.rows)
    rows = read_rows(splits["train"]), read_rows(splits["test"])
    return Workload(model, "bert-tiny-imdb", "IMDb", *rows, torch.device("cpu"), 1, 1e-4)


def photographs(args: argparse.Namespace) -> Workload:
    """ResNet-20 and CIFAR-10."""
    model = ResNet20().eval()
    model.load_state_dict(load_file(args.data / "resnet-cifar10" / "resnet20.safetensors"))
    folder = args.data / "cifar10-jpeg"
    train = read_pictures(folder / "train10k.parquet", args.rows)
    test = read_pictures(folder / "test.parquet", args.rows)
    return Workload(model, "ResNet-20", "CIFAR-10", train, test, torch.device("cpu"), 1, 1e-3)


class Deep(nn.Module):
    """48 linear layers, 46 of them with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 48), nn.Linear(48, 10)
        self.blocks = nn.ModuleList(nn.Linear(48, 48) for _ in range(46))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Images (B, 64) to logits (B, 10)."""
        x = self.first(pixels)
        for block in self.blocks:
            x = x + 0.3 * torch.relu(block(x))
        return self.last(x)


def deep(args: argparse.Namespace) -> Workload:
    """48 layers and digits, trained here for 15 epochs."""
    splits = {name: read_rows(rows) for name, rows in default_dataset("mlp").items()}
    rows = {
        name: Rows({"pixels": next(iter(x.columns.values())).flatten(1)}, x.labels)
        for name, x in splits.items()
    }
    torch.manual_seed(0)
    model = Deep()
    fit(model, rows["train"], epochs=15, lr=3e-3)
    return Workload.of(model, rows["train"], rows["test"], name="48 layers", dataset="digits")


MODELS: dict[str, Callable[[argparse.Namespace], Workload]] = {
    "bert-tiny-imdb": reviews,
    "resnet20": photographs,
    "deep": deep,
}


def run(name: str, args: argparse.Namespace) -> None:
    """The searches of one model, and its table."""
    workload, widths = MODELS[name](args), tuple(map(int, args.widths.split(",")))
    out = args.out / name
    problem = PrecisionProblem(
        raise_to_graph(workload),
        workload.train,
        workload.train.spread(args.search_rows),
        ranges={"width": widths},
        operands=tuple(args.operands.split(",")),
        per=args.per,
    )
    unseen = Evaluator(problem.layers.mg.model, workload.test)
    reference = unseen.of(problem.model(None)).logits()

    def row(label: str, config: Config | None) -> dict[str, Any]:
        logits = unseen.of(problem.model(config)).logits()
        costs = problem.costs({} if config is None else problem.formats(config))
        right = (logits.argmax(-1) == unseen.labels).double()
        return {
            "formats": label,
            "bits": round(costs["bits"], 2),
            "per input": f"{costs['activation_bits']:.2f}",
            "search kl": f"{_kl(problem, config):.4f}",
            "test kl": f"{kl_divergence(reference, logits):.4f}",
            "test accuracy": f"{right.mean():.2%}",
            "right": right,
        }

    rows = [row("float", None)]
    rows += [row(f"{w} everywhere", problem.uniform(f"{w}.mse")) for w in widths]
    for budget in map(float, args.budgets.split(",")):
        goals = [Goal(args.goal, "minimize"), Constraint("bits", budget)]
        if args.cap_inputs:
            goals.append(Constraint("activation_bits", budget))
        given = warm_start(problem, workload.train, goals, SHARE * max(TRIALS))
        within = uniforms_within(problem, goals).values()
        rows += [row(f"at most {budget:g}, {label}", config) for label, config in given.items()]
        first = rows[-len(given)]
        for each in rows:
            _compare(each, first if each["formats"].startswith("at most") else None)
        for begin, start in (("no search", [*given.values(), *within]), ("uniform", [*within])):
            for seed in map(int, args.seeds.split(",")):
                told = {"start": start, "seed": seed, "storage": "memory"}
                search = Search(problem.space, problem.measure, goals, **told)
                for trials in TRIALS:
                    best = search.run(until=trials, progress=False).best
                    label = f"at most {budget:g}, {trials} trials from {begin}, seed {seed}"
                    rows += [] if best is None else [row(label, best.config)]
                    _compare(rows[-1], first)
    for each in rows:
        del each["right"]
    MeasuredTable(f"{workload.title}, {len(workload.test)} test rows", rows).write(out)


def _kl(problem: PrecisionProblem, config: Config | None) -> float:
    return problem.score({} if config is None else problem.formats(config))["kl"]


def _compare(row: dict[str, Any], first: dict[str, Any] | None) -> None:
    """Adds what a row gains on the first of its budget, and the standard error of that, paired."""
    row["against no search (points)"] = "-"
    if first is not None:
        gained = 100 * (row["right"] - first["right"])
        error = gained.std() / len(gained) ** 0.5
        row["against no search (points)"] = f"{gained.mean():+.2f} ± {error:.2f}"
    told = {name: value for name, value in row.items() if name != "right"}
    print(told, flush=True)


def main() -> None:
    """Runs the searches of each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/mixed-precision"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", type=int, default=2000, help="of each split")
    parser.add_argument("--search-rows", type=int, default=500, help="that trials are measured on")
    parser.add_argument("--widths", default="2,3,4,5,6,8", help="bits to choose from")
    parser.add_argument("--budgets", default="3,4,5")
    parser.add_argument("--goal", default="kl", help="what trials make small: kl or loss")
    parser.add_argument("--operands", default="data_in,weight")
    parser.add_argument(
        "--per", default="operand", help="or layer: one width for its inputs and weights"
    )
    parser.add_argument("--cap-inputs", action="store_true", help="the budget holds for them too")
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    for name in args.models.split(","):
        run(name, args)


if __name__ == "__main__":
    main()
