"""How much of what there is to gain each sampler finds, on problems that were measured completely.

Every sampler goes through `chop.search.Search`, which measures no configuration twice: what a
sampler proposes again is answered from memory and not charged. Probes of our sampler are charged.
The mean over seeds of the best so far, in percent of the optimum's gain over the baseline.

python benchmarks/search.py [--seeds 20] [--only precision] [--samplers sensitivity tpe]
    [--folder runs/search] [--json runs/search/gains.json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import torch
from search_tables import Table, architecture_table, landscape_table, precision_tables

from chop.files import write_text
from chop.search import Search
from chop.search.result import Result
from chop.tables import markdown_table

AT = (25, 50, 100)
NEAR = 99.0
"""Percent of the optimum's gain that counts as having found it."""


class PlainLocalSearch(optuna.samplers.RandomSampler):
    """Changes one or two choices of one of the best four trials, after eight random ones."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.random = random.Random(seed)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """All choices are decided together."""
        return optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """A mutant; trials beyond the budgets come after those within."""
        done = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        if len(done) < 8:
            return {}
        done.sort(key=lambda t: (max([0.0, *t.constraints.values()]), -t.value))
        params = dict(self.random.choice(done[:4]).params)
        for name in self.random.sample(sorted(params), self.random.choice((1, 2))):
            params[name] = self.random.choice(search_space[name].choices)
        return params


SAMPLERS = ("sensitivity", "tpe", "nsga2", "cmaes", "random", "local search")


def run(table: Table, sampler: str, seed: int) -> tuple[Result, float]:
    """One search, and the seconds it took."""
    chosen: Any = PlainLocalSearch(seed) if sampler == "local search" else sampler
    begin = time.perf_counter()
    search = Search(
        table.space, table.measure, table.goals, sampler=chosen, storage="memory", seed=seed
    )
    result = search.run(until=max(AT), progress=False)
    return result, time.perf_counter() - begin


def row_of(table: Table, sampler: str, seeds: int) -> dict[str, Any]:
    """A sampler's gains over all seeds."""
    curves, repeated, seconds = [], [], []
    for seed in range(seeds):
        result, took = run(table, sampler, seed)
        curves.append(_curve(table, result))
        repeated.append(100 * result.counts.get("cached", 0) / len(result.trials))
        seconds.append(took)
    gains: dict[str, Any] = {}
    for at in AT:
        values = [curve[at - 1] for curve in curves]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        gains[f"{at} trials"] = f"{statistics.mean(values):.1f} ± {error:.1f}"
    return {
        "sampler": sampler,
        **gains,
        f"found {NEAR:g} %": f"{sum(curve[-1] >= NEAR for curve in curves)} of {seeds}",
        "proposed again, %": f"{statistics.mean(repeated):.0f}",
        "ms per trial": f"{1000 * statistics.median(seconds) / max(AT):.0f}",
        "curves": curves,
    }


def _curve(table: Table, result: Result) -> list[float]:
    """The best gain after each measured configuration; 0 before one keeps to the budgets."""
    told = dict(result.best_so_far())
    curve = [table.gain(told[count]) if count in told else 0.0 for count in range(1, max(AT) + 1)]
    last = curve[len(result.measured) - 1]
    return [last if count > len(result.measured) else gain for count, gain in enumerate(curve, 1)]


def tables(folder: Path, only: str) -> Sequence[Table]:
    """The problems whose name contains `only`."""
    found = [*precision_tables(folder), architecture_table(folder), landscape_table()]
    return [table for table in found if only in table.name]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--folder", type=Path, default=Path("runs/search"))
    parser.add_argument("--json", type=Path, help="writes every curve there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    every = {}
    for table in tables(options.folder, options.only):
        print(f"\n{table.name}: {table.space.size} configurations\n")
        rows = [row_of(table, sampler, options.seeds) for sampler in options.samplers]
        every[table.name] = {row["sampler"]: row.pop("curves") for row in rows}
        print(markdown_table(rows), flush=True)
    if options.json is not None:
        write_text(options.json, json.dumps(every))


if __name__ == "__main__":
    main()
