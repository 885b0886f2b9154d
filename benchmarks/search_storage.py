"""What keeping trials costs: writing one, opening many, several workers at once.

Trials take no time here, the sampler is random, the storage is SQLite. Beside a search stands plain
Optuna on the same file system, tuned alike (write-ahead log, synchronous=NORMAL), in two ways: as
people write it (`study.ask`, `study.tell`), and with each finished trial added at once
(`study.add_trial`). Costs are processor time of one process, medians; workers are counted in
trials per second of wall time, each number of workers beside one worker in the same run.

    python benchmarks/search_storage.py [--choices 10 50] [--trials 2000] [--workers 1 2 8]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa

from chop.search import Choice, Constraint, Goal, Search, SearchSpace
from chop.tables import print_table

WIDTHS = {f"{width}.mse": width for width in range(2, 9)}
GOALS = (Goal("kl", "minimize"), Constraint("bits", 4.5))
OPENED = 5000
REPEATS = 40
BLOCK = 20
"""Trials of a run that is timed."""


def space_of(choices: int) -> SearchSpace:
    """Layers that take one of seven widths."""
    return SearchSpace(tuple(Choice(f"layer{i}", WIDTHS) for i in range(choices)))


def measure(config: Any, report: Any) -> dict[str, float]:
    """A number that costs nothing."""
    widths = [WIDTHS[text] for text in config.values()]
    return {"kl": 1 / sum(widths), "bits": sum(widths) / len(widths)}


def filled(folder: Path, space: SearchSpace, trials: int, keep: int) -> Search:
    """A search with so many measured trials in its storage."""

    def save(config: Any, path: Path) -> None:
        (path / "model").write_text("")

    search = Search(
        space, measure, GOALS, sampler="random", out=folder, save=save if keep else None, keep=keep
    )
    search.result()
    draw = random.Random(0)
    engine = sa.create_engine(search.url)
    with engine.begin() as connection:
        for number in range(trials):
            config = {choice.name: draw.choice(choice.texts) for choice in space.choices}
            values = measure(config, None)
            told = {"config": config, "state": "COMPLETE", "told": [values["kl"]], "values": values}
            connection.execute(
                sa.text(
                    "INSERT INTO chop_trials VALUES (:study, :number, :key, 'measured', 'gone', "
                    "1, 0, :document)"
                ),
                {
                    "study": search.name,
                    "number": number,
                    "key": space.key(config),
                    "document": json.dumps(told | {"seconds": 1.0}),
                },
            )
    engine.dispose()
    return search


def plain(folder: Path, trials: int, space: SearchSpace) -> optuna.Study:
    """Optuna's tables with so many trials."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")

    @sa.event.listens_for(storage.engine, "connect")
    def tune(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(trials):
        study.add_trial(finished(space))
    return study


def finished(space: SearchSpace) -> optuna.trial.FrozenTrial:
    """A trial that is added at once."""
    config = space.at(random.randrange(space.size))
    values = measure(config, None)
    return optuna.trial.create_trial(
        params=dict(config),
        distributions=space.distributions(),
        value=values["kl"],
        user_attrs={"values": values},
    )


def asked_and_told(study: optuna.Study, space: SearchSpace) -> None:
    """A trial as people write it."""
    trial = study.ask()
    values = measure(space.suggest(trial), None)
    trial.set_user_attr("values", values)
    study.tell(trial, values["kl"])


def cost(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Milliseconds of processor time, the median over calls."""
    took = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        took.append(1000 * (time.process_time() - begin))
    return statistics.median(took)


def writing(choices: int, trials: int) -> list[dict[str, Any]]:
    """One more trial of a study with so many."""
    space, found = space_of(choices), []
    for name, keep in (("chop", 0), ("chop, best model kept", 1)):
        with tempfile.TemporaryDirectory() as folder:
            search = filled(Path(folder), space, trials, keep)
            totals = itertools.count(trials + BLOCK, BLOCK)
            with search.opened():
                search.run(next(totals), progress=False)  # libraries are loaded
                block = cost(lambda s=search, t=totals: s.run(next(t), progress=False), 5)
            took = block / BLOCK
            found.append({"way": name, "ms per trial": took})
    few = trials // 20  # Optuna's cost hardly depends on what is there
    with tempfile.TemporaryDirectory() as folder:
        study = plain(Path(folder), few, space)
        found.append(
            {
                "way": "Optuna, ask and tell",
                "ms per trial": cost(lambda: asked_and_told(study, space)),
            }
        )
        found.append(
            {
                "way": "Optuna, add_trial",
                "ms per trial": cost(lambda: study.add_trial(finished(space))),
            }
        )
    return found


def opening(choices: int) -> list[dict[str, Any]]:
    """A study of many trials, read by a new process: its table, and what a sampler reads."""
    space, found = space_of(choices), []
    with tempfile.TemporaryDirectory() as folder:
        filled(Path(folder), space, OPENED, 0)

        def opened() -> Search:
            return Search(space, measure, GOALS, sampler="random", out=folder)

        found.append({"way": "chop, the result", "s": cost(lambda: opened().result(), 3) / 1000})
        found.append({"way": "chop, as a sampler", "s": cost(lambda: opened().study, 3) / 1000})
    few = OPENED // 20
    with tempfile.TemporaryDirectory() as folder:
        study = plain(Path(folder), few, space)
        url = f"sqlite:///{folder}/optuna.db"

        def read() -> None:
            optuna.load_study(study_name=study.study_name, storage=url).get_trials(deepcopy=False)

        found.append({"way": f"Optuna (from {few})", "s": 20 * cost(read, 3) / 1000})
    return found


def working(counts: Sequence[int], trials: int) -> list[dict[str, Any]]:
    """Trials per second of several workers, whose trials take no time."""
    space, rates = space_of(10), {}
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            search = Search(space, measure, GOALS, sampler="random", out=folder)
            search.run(until=1, progress=False)
            begin = time.perf_counter()
            search.run(until=trials, workers=count, progress=False)
            rates[count] = trials / (time.perf_counter() - begin)
    first = rates[counts[0]]
    return [{"workers": count, "rate beside one": rate / first} for count, rate in rates.items()]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--choices", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--trials", type=int, default=2000, help="in the study that is written to")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for choices in options.choices:
        print_table(f"one more trial, {choices} choices", writing(choices, options.trials))
    most = max(options.choices)
    print_table(f"opening {OPENED} trials of {most} choices", opening(most))
    print_table("workers on two cores, trials of no length", working(options.workers, 800))


if __name__ == "__main__":
    main()
