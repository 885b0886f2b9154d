"""What a trial of a search costs, and how much of it is not training or evaluation.

Evaluation after training: a quantized classifier of texts evaluated by Hugging Face's Trainer, in
batches of 8 padded to the longest, and by a mixed-precision trial, which switches formats in place
and runs on batches of like length that were made once. Both take turns, A B B A
(`chop.bench`), and give the same accuracy; a ratio of processor times is the median over the turns.

History: trials of the default sampler, whose objective is a sum, after many random ones.

Overhead: a search of one-epoch trials with a SQLite storage. What is spent outside the measure,
on sampling, claiming and storing, as a share of a trial. The first four trials are not counted:
libraries are loaded in them.

    python benchmarks/search_cost.py [--seconds 5] [--trials 12] [--profile]
    python benchmarks/search_cost.py --data FOLDER --rows 1000     (reviews of IMDb, 256 tokens)
    python benchmarks/search_cost.py --seconds 0 --trials 0 --history 300,1000,2000
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.data import get_tokenized_dataset
from chop.models import BUILTIN_MODELS, load_model
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.search import Choice, Constraint, Goal, Search, SearchSpace
from chop.train import (
    calibration_batches,
    default_dataset,
    evaluate,
    fit,
    get_trainer,
    load_trained,
    read_rows,
)

CYCLE = ("4.mse", "6.mse", "8.mse")
"""Formats that the turns go through, so that no weight is rounded already on the first round."""
WARM_UP = 4


def texts(data: Path | None, rows: int) -> tuple[nn.Module, Any]:
    """A trained classifier of texts, and its tokenized data set."""
    if data is None:
        return load_trained("bert-tiny"), default_dataset("bert-tiny")
    folder = data / "bert-tiny-imdb"
    splits = get_tokenized_dataset(data / "imdb", folder, max_length=256, limit=rows)
    return load_model(folder, num_labels=2).eval(), splits


def raised(model: nn.Module, train: Any) -> MaseGraph:
    """The model as a graph with metadata."""
    example = next(calibration_batches(model, train, rows=3))
    mg = MaseGraph(model, dummy_in=example)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    return passes.add_common_metadata_analysis_pass(mg)[0]


def seconds(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(wall seconds, processor seconds, result)."""
    wall, busy = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - busy, result


def evaluation(data: Path | None, rows: int, spent: float) -> None:
    """Evaluation by the Trainer beside a trial."""
    model, splits = texts(data, rows)
    train, test = read_rows(splits["train"]), read_rows(splits["test"])
    problem = PrecisionProblem(raised(model, train), train, test, ranges={"width": (4, 6, 8)})
    trainers = {}
    for text in CYCLE:
        quantized = problem.graph(problem.uniform(text)).model
        trainers[text] = get_trainer(quantized, splits, eval_batch_size=8, disable_tqdm=True)

    def by_trainer(text: str) -> float:
        return trainers[text].evaluate()["eval_accuracy"]

    def by_trial(text: str) -> float:
        return problem.measure(problem.uniform(text), lambda step, value: None)["accuracy"]

    for text in CYCLE:
        answers = {round(way(text), 6) for way in (by_trainer, by_trial)}
        assert len(answers) == 1, f"the ways disagree: {answers}"
    ways = {"Trainer, batches of 8": by_trainer, "trial": by_trial}
    found = compare(
        [Variant(name, in_turn(way)) for name, way in ways.items()],
        seconds=spent,
        clock="processor",
        outputs=False,
        memory=False,
        inference=False,
    )
    table = [
        {
            "evaluation": way.name,
            "ms": 1000 * way.seconds,
            "processor ms": 1000 * way.processor_seconds,
            "times faster": way.ratio.median,
        }
        for way in found
    ]
    print_table(f"{len(test)} rows, evaluated after quantization", table)


def in_turn(way: Callable[[str], float]) -> Callable[[], float]:
    """A call that takes the formats one after the other."""
    turns = itertools.cycle(CYCLE)
    return lambda: way(next(turns))


class Timed:
    """A measure that trains for one epoch, and notes how long it took."""

    def __init__(self, name: str) -> None:
        splits = default_dataset(name)
        self.train, self.test = read_rows(splits["train"]), read_rows(splits["test"])
        self.recipe = BUILTIN_MODELS[name]
        trained = load_trained(name)
        self.problem = PrecisionProblem(raised(trained, self.train), self.train, self.test)
        self.spent: list[tuple[float, float]] = []

    def __call__(self, config: Any, report: Any) -> dict[str, float]:
        """Quantizes, trains and evaluates."""

        def work() -> float:
            mg = self.problem.graph(config)
            fit(mg.model, self.train, epochs=1, lr=self.recipe.recipe.lr / 10)
            return evaluate(mg.model, self.test)

        wall, busy, accuracy = seconds(work)
        self.spent.append((wall, busy))
        return {"accuracy": accuracy} | self.problem.costs(self.problem.formats(config))


def overhead(names: list[str], samplers: list[str], trials: int) -> None:
    """What a search adds to each one-epoch trial."""
    table = []
    for name in names:
        for sampler in samplers:
            measure = Timed(name)
            with tempfile.TemporaryDirectory() as folder:
                goals = [Goal("accuracy"), Constraint("bits", 6.0)]
                search = Search(measure.problem.space, measure, goals, sampler=sampler, out=folder)
                search.run(until=WARM_UP, progress=False)
                done = len(measure.spent)
                wall, busy, _ = seconds(lambda s=search: s.run(trials + WARM_UP, progress=False))
            inside = [sum(column) for column in zip(*measure.spent[done:], strict=True)]
            table.append(
                {
                    "model": name,
                    "sampler": sampler,
                    "trial (ms)": 1000 * inside[0] / trials,
                    "outside (ms)": 1000 * (wall - inside[0]) / trials,
                    "share": f"{wall / inside[0] - 1:.1%}",
                    "share of processor time": f"{busy / inside[1] - 1:.1%}",
                }
            )
    print_table("one-epoch trials: time outside training and evaluation", table)


def after(counts: list[int]) -> None:
    """Processor time of a trial in studies of these lengths: median of eight times ten trials."""
    options = {str(k): k for k in range(4)}
    costs = {text: float(k) for text, k in options.items()}
    space = SearchSpace(tuple(Choice(f"layer{i}", options, costs) for i in range(14)))

    def measure(config: Any, report: Any) -> dict[str, float]:
        off = [(int(text) - i % 4) ** 2 for i, text in enumerate(config.values())]
        return {"loss": float(sum(off)), "cost": space.cost(config)}

    goals = (Goal("loss", "minimize"), Constraint("cost", 20.0))
    search = Search(space, measure, goals, sampler="random", storage="memory")
    table = []
    with search.opened():
        for count in counts:
            search.sampler = "random"
            search.run(until=count, progress=False)
            search.sampler = "sensitivity"
            ends = range(count + WARM_UP, count + WARM_UP + 90, 10)
            busy = [seconds(lambda n=n: search.run(until=n, progress=False))[1] for n in ends]
            table.append({"trials": count, "processor ms": 100 * statistics.median(busy[1:])})
    print_table("a trial in a long study", table)


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5, help="of evaluations, per way")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--models", default="vit,bert-tiny")
    parser.add_argument("--samplers", default="sensitivity,random")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--history", default="", help="lengths of studies, separated by commas")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    profile = cProfile.Profile()
    if args.profile:
        profile.enable()
    if args.seconds:
        evaluation(args.data, args.rows, args.seconds)
    if args.trials:
        overhead(args.models.split(","), args.samplers.split(","), args.trials)
    if args.history:
        after([int(count) for count in args.history.split(",")])
    if args.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
