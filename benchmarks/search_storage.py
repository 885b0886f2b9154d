"""Trial storage: cost of writing and opening, several workers, and what `kill -9` leaves.

Trials take no time here, the sampler is random, the storage is SQLite. Beside a search stand two
storages of Optuna on the same file system: `RDBStorage` in SQLite, tuned alike (write-ahead log,
synchronous=NORMAL), and `JournalStorage` in a file. Each is measured in two ways: as people write
it (`study.ask`, `study.tell`), and with each finished trial added at once (`study.add_trial`).
Costs are processor time of one process, medians. Whole searches (`search_storage_runs.py`) run in
processes of their own, ours and `JournalStorage` in turns (A B B A): processor time includes all
workers, wall time the start of the processes; ratios are medians over pairs of the same turn.

    python benchmarks/search_storage.py [--choices 10 50] [--trials 2000] [--rounds 5] [--kills 20]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from search_storage_runs import (
    GOALS,
    OPTUNA_STORAGES,
    kills,
    measure,
    repeats,
    space_of,
    whole_searches,
)

from chop.base.tables import print_table
from chop.search import Search, SearchSpace

OPENED = 2000
REPEATS = 40
BLOCK = 20
"""Trials of a run that is timed."""


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


def plain(
    storage: Callable[[Path], optuna.storages.BaseStorage],
    folder: Path,
    trials: int,
    space: SearchSpace,
) -> optuna.Study:
    """An Optuna study with so many trials."""
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(storage=storage(folder), study_name="search", sampler=sampler)
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
    for name, storage in OPTUNA_STORAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            study = plain(storage, Path(folder), few, space)
            told = cost(lambda s=study: asked_and_told(s, space))
            added = cost(lambda s=study: s.add_trial(finished(space)))
        found += [
            {"way": f"{name}, ask and tell", "ms per trial": told},
            {"way": f"{name}, add_trial", "ms per trial": added},
        ]
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
    for name, storage in OPTUNA_STORAGES.items():
        share = 1 if name == "JournalStorage" else 20  # what the other takes grows with the trials
        with tempfile.TemporaryDirectory() as folder:
            plain(storage, Path(folder), OPENED // share, space)

            def read(make: Any = storage, where: Path = Path(folder)) -> None:
                study = optuna.load_study(study_name="search", storage=make(where))
                study.get_trials(deepcopy=False)

            found.append({"way": name, "s": share * cost(read, 3) / 1000})
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--choices", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--trials", type=int, default=2000, help="in the study that is written to")
    parser.add_argument("--rounds", type=int, default=5, help="of whole searches: two turns each")
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for choices in options.choices:
        print_table(f"one more trial, {choices} choices", writing(choices, options.trials))
    most = max(options.choices)
    print_table(f"opening {OPENED} trials of {most} choices", opening(most))
    for workers in (1, 2):
        title = f"a search of 200 trials of no length, {workers} worker(s)"
        print_table(title, whole_searches(workers, options.rounds))
    print_table("200 configurations of 256, two workers", repeats())
    print_table(f"after kill -9, {options.kills} searches each", kills(options.kills))


if __name__ == "__main__":
    main()
