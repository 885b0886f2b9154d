"""Lab 3: mixed precision, one best-so-far curve for each number format.

python examples/lab_3.py            (built-in vision transformer and digits, a few minutes)
python examples/lab_3.py --model DIR --dataset DIR --max-length 256 --limit 2000
python examples/lab_3.py --quick    (a few trials, to see that it works)

Part 1: integers whose width and fraction are chosen for each layer. Part 2: the same for all ten
formats of the course. Nothing is trained during a search; the best of each format is trained for
an epoch with rounding after it. What is `best` is judged on half of the test rows, and the table
is of the other half. Killed and started again, the lab goes on where it was.
"""

import argparse
import json
from pathlib import Path

from chop.actions.sweep.record import write_figure, write_table
from chop.actions.workload import WorkloadConfig, load_workload, raise_to_graph
from chop.mixed_precision.problem import PrecisionProblem
from chop.nas.training import split_rows
from chop.report.search_plots import plot_best_so_far
from chop.search import Goal, Search
from chop.train import evaluate, fit

WIDTHS = {"width": (8, 16, 32)}
EXPONENTS = {**WIDTHS, "exponent_width": (2, 3, 4)}
BLOCKS = {"block_size": (16, 32)}
BIASES = {"exponent_bias": (3, 7, 15)}
BIAS_WIDTHS = {"exponent_bias_width": (2, 3, 4)}
FORMATS = {
    "integer": ("integer", {**WIDTHS, "frac_width": (2, 4, 8)}),
    "minifloat (denormal)": ("minifloat_denorm", {**EXPONENTS, **BIASES}),
    "minifloat (IEEE)": ("minifloat_ieee", {**EXPONENTS, **BIASES}),
    "log": ("log", {**WIDTHS, **BIASES}),
    "block floating point": ("block_fp", {**EXPONENTS, **BLOCKS}),
    "block minifloat": ("block_minifloat", {**EXPONENTS, **BIAS_WIDTHS, **BLOCKS}),
    "block log": ("block_log", {**WIDTHS, **BIAS_WIDTHS, **BLOCKS}),
    "binary": ("binary", {"scaling_factor": (False,)}),
    "binary, scaled": ("binary", {"scaling_factor": (True,)}),
    "binary, residual signs": ("binary_residual", {}),
}
"""What is chosen for each layer, by the label of the curve."""
BINARY = ("binary", "binary, scaled")
"""Formats with nothing to choose: each layer takes them or stays float."""


def main():
    """Runs the lab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit", help="built-in, local folder or hub name")
    parser.add_argument("--dataset", help="default: the built-in model's own")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--out", type=Path, default=Path("runs/lab-3"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.trials, args.seeds = 3, 1

    workload = load_workload(
        WorkloadConfig(
            model=args.model,
            dataset=args.dataset,
            max_length=args.max_length,
            limit=args.limit,
            out=args.out,
        )
    )
    unseen, rows = split_rows(workload.test, 0.5)
    mg = raise_to_graph(workload)
    found = {label: search_format(mg, workload, rows, label, args) for label in FORMATS}
    draw(args.out / "integer", found, ["integer"], workload, rows)
    draw(args.out / "formats", found, list(FORMATS), workload, rows)
    float_accuracy = evaluate(workload.model, unseen)
    table = [report(*found[label], label, workload, unseen, float_accuracy) for label in FORMATS]
    write_table(args.out, f"{workload.name}: the best of each format, on unseen rows", table)
    best = {label: best_of(results).config for label, (_, results) in found.items()}
    (args.out / "best.json").write_text(json.dumps(best, indent=2))


def search_format(mg, workload, rows, label, args):
    """The problem of a format, and one result per seed."""
    name, ranges = FORMATS[label]
    formats = (name, "float") if label in BINARY else (name,)
    problem = PrecisionProblem(
        mg, workload.train, rows, formats=formats, ranges=ranges, bias="float"
    )
    results = []
    for seed in range(args.seeds):
        search = Search(
            problem.space,
            problem.measure,
            Goal("accuracy"),
            sampler=args.sampler,
            seed=seed,
            out=args.out,
            name=f"{label}, seed {seed}",
        )
        results.append(search.run(until=args.trials, progress=False))
        search.close()
    best = max(result.best.values["accuracy"] for result in results)
    print(
        f"{label}: {len(problem.options)} options for each of {len(problem.space.choices)} "
        f"layers: {best:.2%}",
        flush=True,
    )
    return problem, results


def draw(path, found, labels, workload, rows):
    """Best accuracy so far against trials."""
    write_figure(
        path,
        plot_best_so_far,
        {label: [result.best_so_far() for result in found[label][1]] for label in labels},
        ylabel="best accuracy so far",
        title=f"{workload.name}: formats chosen layer by layer",
        baselines={"float": evaluate(workload.model, rows)},
    )


def best_of(results):
    """The best trial over all seeds: of many that answer as many rows right, the surest."""
    trials = [trial for result in results for trial in result.measured]
    return max(trials, key=lambda trial: (trial.values["accuracy"], -trial.values["loss"]))


def report(problem, results, label, workload, unseen, float_accuracy):
    """The best of a format on rows that no trial saw, and trained for an epoch with rounding."""
    best = best_of(results)
    mg = problem.graph(best.config)
    after_search = evaluate(mg.model, unseen)
    fit(mg.model, workload.train, epochs=1, lr=workload.tuning_lr / 3)
    return {
        "format": label,
        "bits": best.values["bits"],
        "float": float_accuracy,
        "searched": after_search,
        "trained for an epoch": evaluate(mg.model, unseen),
    }


if __name__ == "__main__":
    main()
