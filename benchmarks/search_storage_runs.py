"""Whole searches on three storages for `search_storage.py`: cost, repeats, and `kill -9`."""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import sqlalchemy as sa
from optuna.storages.journal import JournalFileBackend

from chop.bench import paired_ratio
from chop.bench.record import format_ratio
from chop.search import Choice, Constraint, Goal, Search, SearchSpace

FORK = multiprocessing.get_context("fork")
WIDTHS = {f"{width}.mse": width for width in range(2, 9)}
GOALS = (Goal("kl", "minimize"), Constraint("bits", 4.5))
TRIALS = 200
ENDLESS = 100_000
Measure = Callable[[Any, Any], dict[str, float]]
Callback = Callable[[optuna.Study, optuna.trial.FrozenTrial], None]


class Task(NamedTuple):
    """A search to be run.

    Attributes:
        folder: of its storage.
        space: search space.
        measure: objective function.
        callbacks: called after each trial is stored.
    """

    folder: Path
    space: SearchSpace
    measure: Measure
    callbacks: Sequence[Callback] = ()


def space_of(choices: int, options: int = len(WIDTHS)) -> SearchSpace:
    """Layers that take one of seven widths, or of the first few."""
    some = dict(list(WIDTHS.items())[:options])
    return SearchSpace(tuple(Choice(f"layer{i}", some) for i in range(choices)))


def measure(config: Any, report: Any) -> dict[str, float]:
    """A number that costs nothing."""
    widths = [WIDTHS[text] for text in config.values()]
    return {"kl": 1 / sum(widths), "bits": sum(widths) / len(widths)}


def database(folder: Path) -> optuna.storages.BaseStorage:
    """Optuna's tables in SQLite, tuned as ours."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")

    @sa.event.listens_for(storage.engine, "connect")
    def tune(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


def journal(folder: Path) -> optuna.storages.BaseStorage:
    """Optuna's log of operations in a file."""
    return optuna.storages.JournalStorage(JournalFileBackend(f"{folder}/optuna.log"))


OPTUNA_STORAGES = {"JournalStorage": journal, "RDBStorage": database}


class Chop:
    """Our storage, in SQLite."""

    name = "chop"

    def run(self, task: Task, until: int, workers: int) -> None:
        """Measures until so many configurations are in the storage."""
        self._search(task).run(until=until, workers=workers, progress=False)

    def trials(self, task: Task) -> list[tuple[Mapping[str, Any], bool]]:
        """Configuration of each trial, and whether it has ended."""
        found = self._search(task).result().trials
        return [(t.config, t.outcome not in ("running", "waiting")) for t in found]

    def _search(self, task: Task) -> Search:
        folder, space, objective, callbacks = task
        return Search(
            space, objective, GOALS, sampler="random", out=folder, callbacks=tuple(callbacks)
        )


class Optuna:
    """Optuna's own loop on one of its storages; each worker measures its share.

    Args:
        name: in `OPTUNA_STORAGES`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, task: Task, until: int, workers: int) -> None:
        """Measures until so many trials are in the storage."""
        share = (until - len(self._study(task, 0).trials)) // workers
        if workers == 1:
            self._work(task, share, 0)
            return
        forked = [FORK.Process(target=self._work, args=(task, share, n)) for n in range(workers)]
        for process in forked:
            process.start()
        for process in forked:
            process.join()

    def trials(self, task: Task) -> list[tuple[Mapping[str, Any], bool]]:
        """Configuration of each trial, and whether it has ended."""
        return [(t.params, t.state.is_finished()) for t in self._study(task, 0).trials]

    def _study(self, task: Task, seed: int) -> optuna.Study:
        return optuna.create_study(
            storage=OPTUNA_STORAGES[self.name](task.folder),
            study_name="search",
            sampler=optuna.samplers.RandomSampler(seed=seed),
            load_if_exists=True,
        )

    def _work(self, task: Task, count: int, seed: int) -> None:
        def objective(trial: optuna.Trial) -> float:
            values = task.measure(task.space.suggest(trial), None)
            trial.set_user_attr("values", values)
            return values["kl"]

        self._study(task, seed).optimize(objective, n_trials=count, callbacks=list(task.callbacks))


WAYS: tuple[Chop | Optuna, ...] = (Chop(), *map(Optuna, OPTUNA_STORAGES))


def forked(work: Callable[[], None]) -> multiprocessing.process.BaseProcess:
    """A process that does it."""
    process = FORK.Process(target=work)
    process.start()
    return process


def spent(work: Callable[[], None]) -> tuple[float, float]:
    """Wall seconds, and processor seconds of a process and its workers."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = forked(work)
    process.join()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.exitcode == 0
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def whole_searches(workers: int, rounds: int) -> list[dict[str, Any]]:
    """A search of `TRIALS` trials on our storage and on `JournalStorage`, in turns."""
    space, ways = space_of(10), WAYS[:2]
    walls: dict[str, list[float]] = {way.name: [] for way in ways}
    busy: dict[str, list[float]] = {way.name: [] for way in ways}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for way in (*ways, *reversed(ways)):
            with tempfile.TemporaryDirectory() as folder:
                task = Task(Path(folder), space, measure)
                wall, processor = spent(partial(way.run, task, TRIALS, workers))
                sizes[way.name] = sum(f.stat().st_size for f in task.folder.glob("*.*"))
                ended = {
                    tuple(config.values()) for config, is_ended in way.trials(task) if is_ended
                }
                assert len(ended) == TRIALS
            walls[way.name].append(1000 * wall / TRIALS)
            busy[way.name].append(1000 * processor / TRIALS)
    first = ways[0].name
    return [
        {
            "storage": name,
            "processor ms per trial": statistics.median(busy[name]),
            "beside chop": beside(busy[name], busy[first]),
            "wall ms per trial": statistics.median(walls[name]),
            "wall beside chop": beside(walls[name], walls[first]),
            "file (kB)": sizes[name] / 1000,
        }
        for name in walls
    ]


def beside(times: Sequence[float], first: Sequence[float]) -> str:
    """Ratio to those of the first storage; of itself, 1."""
    return "1" if times is first else format_ratio(paired_ratio(times, first))


def noting(path: Path) -> Measure:
    """A measure that writes down across processes what it measures."""

    def noted(config: Any, report: Any) -> dict[str, float]:
        append(path, config)
        return measure(config, report)

    return noted


def append(path: Path, config: Mapping[str, Any]) -> None:
    """Adds a line in one write."""
    with path.open("a") as file:
        file.write(json.dumps(dict(config)) + "\n")


def lines(path: Path) -> list[str]:
    """What was added."""
    return path.read_text().splitlines() if path.exists() else []


def repeats(seeds: int = 3) -> list[dict[str, Any]]:
    """Two workers in a space of 256 configurations: what is measured more than once."""
    found = []
    for way in WAYS:
        twice = []
        for _ in range(seeds):
            with tempfile.TemporaryDirectory() as name:
                log = Path(name) / "measured"
                task = Task(Path(name), space_of(4, 4), noting(log))
                spent(partial(way.run, task, TRIALS, 2))
                twice.append(sum(count - 1 for count in Counter(lines(log)).values()))
        found.append({"storage": way.name, "measured again": ", ".join(map(str, twice))})
    return found


def kills(count: int) -> list[dict[str, Any]]:
    """Kills one search after another at random moments, then goes on with all of them at once."""
    found = []
    for way in WAYS:
        draw = random.Random(0)
        with tempfile.TemporaryDirectory() as name:
            folders = [Path(name) / str(number) for number in range(count)]
            for folder in folders:
                folder.mkdir()
                killed(way, folder, draw.uniform(0.05, 0.5))
            resumed = [forked(partial(resume, way, folder)) for folder in folders]
            for process in resumed:
                process.join()
            found.append({"storage": way.name} | summary(folders))
    return found


def killed(way: Chop | Optuna, folder: Path, seconds: float) -> None:
    """A search whose process is killed so many seconds after its first trial."""
    stored = folder.parent / f"{folder.name}.stored"
    task = Task(folder, space_of(10), measure, [lambda study, t: append(stored, t.params)])
    process = forked(partial(way.run, task, ENDLESS, 1))
    while not lines(stored):
        time.sleep(0.01)
    time.sleep(seconds)
    process.kill()
    process.join()


def resume(way: Chop | Optuna, folder: Path) -> None:
    """Runs one more trial, and writes down what the kill has left."""
    begin, ends = time.perf_counter(), []
    stored = [json.loads(line) for line in lines(folder.parent / f"{folder.name}.stored")]
    ended = [lambda study, trial: ends.append(time.perf_counter() - begin)]
    task = Task(folder, space_of(10), measure, ended)
    known = way.trials(task)
    way.run(task, len(known) + 1, 1)
    after = way.trials(task)
    finished = [dict(config) for config, is_finished in after if is_finished]
    report = {
        "stored": len(stored),
        "lost": sum(config not in finished for config in stored),
        "running": sum(not is_finished for _, is_finished in after),
        "seconds": ends[0],
    }
    folder.with_suffix(".json").write_text(json.dumps(report))


def summary(folders: Sequence[Path]) -> dict[str, Any]:
    """Sums over searches; one that cannot go on has left no report."""
    paths = [folder.with_suffix(".json") for folder in folders]
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    seconds = sorted(report["seconds"] for report in found)
    return {
        "go on": f"{len(found)} of {len(folders)}",
        "stored trials": sum(report["stored"] for report in found),
        "lost": sum(report["lost"] for report in found),
        "left running": sum(report["running"] for report in found),
        "next trial after (s), median": statistics.median(seconds),
        "most": seconds[-1],
    }
