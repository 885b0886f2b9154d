"""Accuracy against average bits: formats searched layer by layer, beside one width everywhere.

    python benchmarks/mixed_precision.py --data FOLDER --out runs/mixed-precision

FOLDER holds `bert-tiny-imdb` and `imdb` (reviews), `resnet-cifar10/resnet20.safetensors` and
`cifar10-jpeg/{test,train10k}.parquet` (photographs). Integers, weights and inputs of every layer
with a matrix, biases in 8 bits, fractions derived. Trials see training rows only; the table is of
test rows. One search for each budget of bits; killed, each goes on where it was. `--help` lists
the rest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from resnet20 import ResNet20, read_pictures
from safetensors.torch import load_file

from chop.actions.search.format_settings import spread_evenly
from chop.actions.subject import (
    Subject,
    fingerprint_of_rows,
    fingerprint_of_weights,
    raise_to_graph,
)
from chop.actions.sweep.record import write_figure, write_table
from chop.data import get_tokenized_dataset
from chop.models import load_model
from chop.report.plots import Curve, plot_accuracy
from chop.search import Goal, Search
from chop.search.evaluation import Evaluator
from chop.search.precision import PrecisionProblem
from chop.train import read_rows

WIDTHS = (2, 3, 4, 5, 6, 8)


def reviews(args: argparse.Namespace) -> Subject:
    """BERT-tiny and IMDb, 256 tokens."""
    folder = args.data / "bert-tiny-imdb"
    model = load_model(folder, num_labels=2).eval()
    splits = get_tokenized_dataset(args.data / "imdb", folder, max_length=256, limit=args.rows)
    rows = read_rows(splits["train"]), read_rows(splits["test"])
    return Subject(model, "bert-tiny-imdb", "IMDb", *rows, torch.device("cpu"), 1, 1e-4)


def photographs(args: argparse.Namespace) -> Subject:
    """ResNet-20 and CIFAR-10."""
    model = ResNet20().eval()
    model.load_state_dict(load_file(args.data / "resnet-cifar10" / "resnet20.safetensors"))
    folder = args.data / "cifar10-jpeg"
    train = read_pictures(folder / "train10k.parquet", args.rows)
    test = read_pictures(folder / "test.parquet", args.rows)
    return Subject(model, "ResNet-20", "CIFAR-10", train, test, torch.device("cpu"), 1, 1e-3)


MODELS: dict[str, Callable[[argparse.Namespace], Subject]] = {
    "bert-tiny-imdb": reviews,
    "resnet20": photographs,
}


def run(name: str, args: argparse.Namespace) -> None:
    """The searches of one model, its table and its figure."""
    subject = MODELS[name](args)
    out = args.out / name
    problem = PrecisionProblem(
        raise_to_graph(subject),
        subject.train,
        spread_evenly(subject.train, args.search_rows),
        ranges={"width": WIDTHS},
        operands=tuple(args.operands.split(",")),
        per=args.per,
    )
    unseen = Evaluator(problem.layers.mg.model, subject.test)

    def row(label: str, formats: Any, spent: float = 0.0) -> dict[str, Any]:
        problem.layers.switch(formats)
        costs = problem.costs(formats)
        return {
            "formats": label,
            "bits": round(costs["bits"], 3),
            "activation bits": f"{costs['activation_bits']:.2f}",
            "test accuracy": unseen().accuracy,
            "minutes": f"{spent / 60:.1f}",
        }

    rows = [row("float", {})]
    rows += [row(f"uniform {w}", problem.formats(problem.uniform(f"{w}.mse"))) for w in WIDTHS]
    told = {
        "weights": fingerprint_of_weights(subject.model),
        "rows": fingerprint_of_rows(subject.train),
        "settings": [args.search_rows, args.operands, args.per],
    }
    for budget in map(float, args.budgets.split(",")):
        goals = [Goal(args.goal, "minimize"), Goal("bits", "minimize", budget)]
        if args.cap_inputs:
            goals.append(Goal("activation_bits", "minimize", budget))
        begun, plain = time.monotonic(), problem.plain(goals)
        search = Search(
            problem.space,
            problem.measure,
            goals,
            start=() if plain is None else (plain,),
            out=out / f"bits-{budget:g}",
            seed=args.seed,
            problem=told,
        )
        best = search.run(until=args.trials).best
        if best is not None:
            formats = problem.formats(best.config)
            rows.append(row(f"mixed, at most {budget:g}", formats, time.monotonic() - begun))
    write_table(out, f"{subject.name} on {subject.dataset}, {len(subject.test)} test rows", rows)
    uniform, mixed = rows[1 : 1 + len(WIDTHS)], rows[1 + len(WIDTHS) :]
    curves = [
        Curve(label, [(r["bits"], r["test accuracy"]) for r in part])
        for label, part in (("the same everywhere", uniform), ("searched", mixed))
        if part
    ]
    write_figure(
        out / "accuracy",
        plot_accuracy,
        curves,
        {"float": rows[0]["test accuracy"], **subject.baselines},
        xlabel="bits per weight of the searched layers",
        title=f"{subject.name} on {subject.dataset}",
    )


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
    parser.add_argument("--trials", type=int, default=60, help="for each budget")
    parser.add_argument("--budgets", default="2.5,3,3.5,4,5")
    parser.add_argument("--goal", default="kl", help="what trials make small: kl or loss")
    parser.add_argument("--operands", default="data_in,weight")
    parser.add_argument(
        "--per", default="layer", help="or operand: widths of inputs and weights apart"
    )
    parser.add_argument("--cap-inputs", action="store_true", help="the budget holds for them too")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in args.models.split(","):
        run(name, args)


if __name__ == "__main__":
    main()
