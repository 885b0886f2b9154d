"""How much of what there is to gain each sampler finds, on problems whose optimum is known.

Every sampler goes through `chop.search.Search`, which measures no configuration twice: what a
sampler proposes again is answered from memory and not charged. Probes of our sampler are charged.
The synthetic problems and the NK landscape are drawn anew for each seed. Each run is a file of its
own in the folder, so that what was cut goes on where it was.

python benchmarks/search.py [--seeds 10] [--only traps] [--samplers sensitivity tpe]
    [--folder runs/search] [--show]        runs what is not there yet, and prints the tables
python benchmarks/search.py --cost        CPU seconds of a suggestion at 1,000 trials
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from search_problems import PROBLEMS, Problem, chain, get_code, space_of
from search_tables import architecture_table, landscape_table, precision_tables

from chop.base.files import write_text
from chop.base.tables import markdown_table, print_table
from chop.search import Search
from chop.search.registry import sampler_row

AT = (25, 50, 100, 200)
DISTANT = 1000
"""Seeds of reported instances begin here; those that the sampler was tuned on lie below."""
COSTS = (44, 100, 200)
TRIALS, OPTIONS, ASKED = 1000, 7, 15


def _tpe_joint(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed)


SAMPLERS: Mapping[str, str | Callable[[int], Any]] = {
    "sensitivity": "sensitivity",
    "tpe": "tpe",
    "tpe, multivariate": _tpe_joint,
    "gp": "gp",
    "cmaes": "cmaes",
    "nsga2": "nsga2",
    "random": "random",
}


@cache
def _tables(folder: Path) -> dict[str, Problem]:
    found = [*precision_tables(folder), architecture_table(folder)]
    return {problem.name: problem for problem in found}


def problems(folder: Path) -> dict[str, Callable[[int], Problem]]:
    """Every problem by name: seed -> instance."""
    names = ("precision, score", "precision, budget", "architectures")
    measured = {name: lambda seed, name=name: _tables(folder)[name] for name in names}
    return {**PROBLEMS, "NK landscape": landscape_table, **measured}


def run(problem: Problem, sampler: str, seed: int) -> dict[str, Any]:
    """The curve of one search."""
    chosen = SAMPLERS[sampler]
    search = Search(
        problem.space,
        problem.measure,
        problem.goals,
        sampler=chosen if isinstance(chosen, str) else chosen(seed),
        storage="memory",
        seed=seed,
    )
    result = search.run(until=max(AT), progress=False)
    return {"curve": problem.curve(result.measured, max(AT))}


def run_missing(folder: Path, name: str, sampler: str, seed: int) -> None:
    """Runs a search unless its file is there; CMA-ES takes one objective only."""
    path = _path(folder, name, sampler, seed)
    problem = problems(folder)[name](DISTANT + seed)
    if not path.is_file() and not (sampler == "cmaes" and problem.volume is not None):
        write_text(path, json.dumps(run(problem, sampler, seed)))


def _path(folder: Path, name: str, sampler: str, seed: int) -> Path:
    parts = f"{name}__{sampler}__{seed}".replace(", ", "-").replace(" ", "-")
    return folder / "curves" / f"{parts}.json"


def rows_at(folder: Path, names: Sequence[str], at: int, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each problem: each sampler's mean gain and its standard error over the seeds.

    The number of runs stands beside it where there are fewer.
    """
    for name in names:
        row = {"problem": name}
        for sampler in SAMPLERS:
            paths = (_path(folder, name, sampler, seed) for seed in range(seeds))
            runs = [json.loads(path.read_text()) for path in paths if path.is_file()]
            row[sampler] = _format_gains([run["curve"][at - 1] for run in runs], seeds)
        yield row


def _format_gains(gains: Sequence[float], seeds: int) -> str:
    if len(gains) < 2:
        return f"{gains[0]:.1f} (1)" if gains else ""
    error = statistics.stdev(gains) / len(gains) ** 0.5
    fewer = f" ({len(gains)})" if len(gains) < seeds else ""
    return f"{statistics.mean(gains):.1f} ± {error:.1f}{fewer}"


def cost(samplers: Sequence[str]) -> list[dict[str, Any]]:
    """CPU seconds of one suggestion after 1,000 trials: median and most of some in a row.

    The trials are good ones with a few changed choices, as those of a search are. The first
    suggestion of a process is told apart: it loads libraries and reads all trials.
    """
    rows = []
    for count in COSTS:
        space = space_of([OPTIONS] * count)
        for sampler in samplers:
            spent = _suggestions(space, sampler)
            rows.append(
                {
                    "choices": count,
                    "sampler": sampler,
                    "median": statistics.median(spent[1:]),
                    "most": max(spent[1:]),
                    "first": spent[0],
                }
            )
    return rows


def _suggestions(space: Any, sampler: str) -> list[float]:
    draw = np.random.default_rng(0)
    counts = [OPTIONS] * len(space.choices)
    value, _ = chain(draw, len(counts), OPTIONS, own=2.0)
    study = optuna.create_study(direction="maximize")
    best, highest = draw.integers(counts), -np.inf
    row, spent = sampler_row(sampler), []
    for number in range(TRIALS):
        changed = draw.random(len(counts)) < draw.choice([0.03, 0.1, 0.3, 1.0])
        code = np.where(changed, draw.integers(counts), best)
        if number < 3:  # the probes of `sensitivity`
            code = np.full(len(counts), (0, OPTIONS - 1, OPTIONS // 2)[number])
        if value(code) > highest:
            best, highest = code, value(code)
        config = {c.name: c.texts[k] for c, k in zip(space.choices, code, strict=True)}
        study.add_trial(
            optuna.trial.create_trial(
                params=space.to_params(config, row.spelling),
                distributions=space.distributions(row.spelling),
                value=value(code),
                user_attrs={"outcome": "measured"},
            )
        )
    for number in range(ASKED):
        begin = time.process_time()
        study.sampler = row.make(space, number)
        trial = study.ask()
        config = space.suggest(trial, row.spelling)
        spent.append(time.process_time() - begin)
        study.tell(trial, value(get_code(space, config)))
    return spent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", nargs="+", help="problems; all by default")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=[*SAMPLERS])
    parser.add_argument("--folder", type=Path, default=Path("runs/search"))
    parser.add_argument("--show", action="store_true", help="the tables of what is there already")
    parser.add_argument("--cost", action="store_true", help="what a suggestion costs")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if options.cost:
        print_table("CPU seconds of a suggestion at 1,000 trials", cost(options.samplers))
        return
    chosen = options.only or list(problems(options.folder))
    for seed in range(options.first, options.first if options.show else options.seeds):
        for name in chosen:
            for sampler in options.samplers:
                run_missing(options.folder, name, sampler, seed)
    for at in AT:
        rows = list(rows_at(options.folder, chosen, at, options.seeds))
        print(f"\n**{at} trials**\n\n{markdown_table(rows)}", flush=True)


if __name__ == "__main__":
    main()
