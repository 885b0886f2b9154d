"""Tutorial 6: mixed precision, a format for each layer.

python examples/tutorial_6.py            (built-in vision transformer and digits, two minutes)
python examples/tutorial_6.py --model DIR --dataset DIR --max-length 256 --limit 2000
python examples/tutorial_6.py --quick    (a few trials, to see that it works, half a minute)

First as the course writes it, in plain Optuna: each trial puts a class in the place of each Linear,
with a width and a fraction that are drawn too. Then with `chop.search`: only formats and widths are
searched, of inputs and of weights, fractions are derived from data, formats are switched in place,
and an average of 4 bits per weight is a budget. Inputs are not stored: theirs are in the table.
Trials see training rows, which most of them answer right; so they are compared by their divergence
from the float model's answers. Killed and started again, both searches go on where they were.
"""

import argparse
import sys
from copy import deepcopy
from pathlib import Path

import optuna
from torch import nn

from chop import MaseGraph
from chop.base.tables import print_table
from chop.nn.quantized.modules.linear import (
    LinearBlockFP,
    LinearBlockMinifloat,
    LinearInteger,
    LinearMinifloatIEEE,
)
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.problems.nas.architecture import suggest_by_name
from chop.problems.nas.training import split_rows
from chop.search import Constraint, Goal, Search
from chop.tools.utils import deepsetattr
from chop.train import evaluate
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import raise_to_graph

CLASSES = [nn.Linear, LinearInteger, LinearMinifloatIEEE, LinearBlockFP, LinearBlockMinifloat]
MOST_BITS = 4.0
SEARCH_ROWS = 2000
# Shared scales cost a part of a bit: between them lie budgets that whole widths cannot use up.
FORMATS = (
    "integer",
    *(f"scale_integer:width={w}:granularity=channel" for w in (2, 3, 4, 5, 6, 8)),
    *(
        f"scale_integer:width={w}:granularity=group:group_size={g}"
        for w in (3, 4)
        for g in (32, 64)
    ),
    *(f"mxint:width={w}:block_size={b}" for w in (3, 4, 5) for b in (16, 32)),
)
WIDTHS = tuple(range(2, 9))


def config_for(cls, width, frac_width):
    """The config dict of a class, the same for data, weights and biases."""
    fields = {
        LinearInteger: {"width": width, "frac_width": frac_width},
        LinearMinifloatIEEE: {"width": width, "exponent_width": 4, "exponent_bias": 7},
        LinearBlockFP: {"width": width, "exponent_width": 8, "block_size": [16]},
        LinearBlockMinifloat: {
            "width": width,
            "exponent_width": 4,
            "exponent_bias_width": 6,
            "block_size": [16],
        },
    }[cls]
    operands = ("data_in", "weight", "bias")
    return {f"{operand}_{key}": value for operand in operands for key, value in fields.items()}


def search_classes(workload, rows, out, trials):
    """Plain Optuna over classes: only their names are stored, so that a file can hold the study."""

    def objective(trial):
        model = deepcopy(workload.model)
        for name, layer in workload.model.named_modules():
            if not isinstance(layer, nn.Linear):
                continue
            cls = suggest_by_name(trial, f"{name}_type", CLASSES)
            if cls is nn.Linear:
                continue
            width = trial.suggest_categorical(f"{name}_width", [6, 8, 16])
            frac_width = trial.suggest_categorical(f"{name}_frac_width", [2, 3, 4])
            new = cls(
                in_features=layer.in_features,
                out_features=layer.out_features,
                bias=layer.bias is not None,
                config=config_for(cls, width, frac_width),
            )
            new.load_state_dict(layer.state_dict())
            deepsetattr(model, name, new)
        return evaluate(model, rows)

    out.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="classes",
        storage=f"sqlite:///{out / 'classes.db'}",
        sampler=optuna.samplers.TPESampler(seed=0),
        direction="maximize",
        load_if_exists=True,
    )
    study.optimize(objective, n_trials=max(0, trials - len(study.trials)))
    return study


def search_formats(workload, out, trials):
    """Formats of each layer's data and weights, scales derived, 4 bits per weight on average."""
    mg = raise_to_graph(workload)
    problem = PrecisionProblem(
        mg,
        workload.train,
        workload.train.spread(SEARCH_ROWS),
        formats=FORMATS,
        ranges={"width": WIDTHS},
        per="operand",
    )
    goals = (Goal("kl", "minimize"), Constraint("bits", MOST_BITS))
    search = Search(problem.space, problem.measure, goals, out=out, name="formats")
    return problem, search.run(until=trials)


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit", help="built-in, local folder or hub name")
    parser.add_argument("--dataset", help="default: the built-in model's own")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-6"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    trials = 12 if args.quick else args.trials

    workload = load_workload(
        WorkloadConfig(
            model=args.model,
            dataset=args.dataset,
            max_length=args.max_length,
            limit=args.limit,
            out=args.out,
        )
    )
    _, rows = split_rows(workload.test, 0.5)
    study = search_classes(workload, rows, args.out, max(6, trials // 5))
    taken = [study.best_params[name] for name in study.best_params if name.endswith("_type")]
    print(f"classes, {len(study.trials)} trials: {study.best_value:.2%}, {', '.join(set(taken))}")

    # What trials are judged on must not be what the result is judged on: these see no test rows.
    problem, result = search_formats(workload, args.out, trials)
    rows_of_table = [row(problem, "float", None, workload.model, workload.test)]
    for text in ("8.mse", "4.mse", "3.mse"):
        config = problem.uniform(text)
        rows_of_table.append(row(problem, f"uniform {text}", config, None, workload.test))
    if result.best is None:
        sys.exit("nothing within the budget yet: give more trials")
    rows_of_table.append(row(problem, "mixed", result.best.config, None, workload.test))
    print_table(f"{workload.name}, formats searched on training rows, on test rows", rows_of_table)
    for name, text in result.best.config.items():
        print(f"{name}: {text}")
    mg = problem.graph(result.best.config)
    mg.export(args.out / "mixed")
    reloaded = MaseGraph.from_checkpoint(args.out / "mixed")
    same = evaluate(reloaded.model, workload.test) == evaluate(mg.model, workload.test)
    print(f"saved in {args.out / 'mixed'}.pt; reloaded, it answers the same: {same}")


def row(problem, label, config, model, rows):
    """One line of the table."""
    if config is None:
        costs = problem.costs({})
        accuracy = evaluate(model, rows)
    else:
        costs = problem.costs(problem.formats(config))
        accuracy = evaluate(problem.graph(config).model, rows)
    return {
        "formats": label,
        "bits": costs["bits"],
        "accuracy": f"{accuracy:.2%}",
        "bits of inputs": costs["activation_bits"],
    }


if __name__ == "__main__":
    main()
