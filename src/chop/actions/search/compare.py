"""Several searches side by side: the best value found after so many trials, seeds as bands."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from chop import runs
from chop.actions.search.figures import within
from chop.actions.search.manage import find_storage, load_search, study_names
from chop.actions.sweep.record import write_figure, write_table
from chop.errors import ConfigError, check_known
from chop.notices import warn_once
from chop.report.search_plots import Run, plot_best_so_far, value_at
from chop.search import Goal, Result
from chop.search.location import without_password
from chop.search.objective import constraints_of, objectives_of
from chop.train import TASKS

OUT = Path("runs/search-compare")
HOW_LONG = ("trials", "workers", "device")
"""Settings that label a curve only where all others are equal."""
SEED_ALONE = ("seed", "out", "name", "keep", "storage")
"""Settings in which the searches of one curve differ."""
COUNTS = (25, 50, 100)
"""Trials after which the table tells the best."""
SHARES = {name for task in TASKS.values() for name, m in task.metrics.items() if m.is_share}


@dataclass(frozen=True)
class Compared:
    """One search among those that are compared.

    Attributes:
        source: where it was found, without a password.
        name: of its study.
        url: of its storage.
        settings: of its job, nested ones by dotted names; None where a program ran it.
        result: its trials, judged by the goal of the comparison.
    """

    source: str
    name: str
    url: str
    settings: Mapping[str, Any] | None
    result: Result

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.source}:{self.name}"


def compare_searches(
    searches: Sequence[str | Path | tuple[str, str]],
    *,
    out: str | Path = OUT,
    name: str | None = None,
    labels: Sequence[str] = (),
    goal: str | None = None,
    baselines: Mapping[str, float] | None = None,
    title: str | None = None,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Overlays the best-so-far curves of several searches, finished or not.

    Searches of `chop search` whose settings differ in the seed alone are one curve: their median,
    and a band from the least to the greatest. Each other one has a curve of its own, labeled by
    the settings that differ. Those of programs keep no settings: each is a curve, named as its
    study, unless `labels` gives several the same.

    Args:
        searches: output folders, files or URLs; with `:NAME` behind, or as a pair with NAME, one
            study of that storage, else every study.
        out: folder for `best-so-far` (.svg, .png), `table` (.csv, .md) and `manifest.json`.
        name: the study to take from storages that are given without one.
        labels: one for each search, equal ones are one curve; or one for each curve.
        goal: what is compared: a number that every search measured; None takes the first
            objective of all.
        baselines: label -> value, drawn level.
        title: above the figure; None takes the model and data, where they are the same.
        columns: further ones of the table, by the label of a curve; those that begin with `test`
            are numbers of what is compared.
    Returns: the rows of the table, a curve each: seeds, trials, configurations measured, the
        best, the best after 25, 50 and 100 trials, and the seconds of a search; medians over the
        seeds, of the best also mean and range.
    Raises:
        UnavailableError: a storage is not there.
        ConfigError: searches with different goals; no search, or none with a trial within its
            budgets; labels that do not fit.
    """
    found = [each for search in searches for each in _read(search, name)]
    chosen = _common_goal(found, goal)
    curves = _curves([_judged(each, chosen) for each in found], labels)
    series = {key: [each.result.best_so_far() for each in group] for key, group in curves.items()}
    further = columns or {}
    rows = [
        {**_row(label, group, series[label]), **further.get(label, {})}
        for label, group in curves.items()
    ]
    shown = [each for group in curves.values() for each in group]
    values = [value for group in series.values() for one in group for _, value in one]
    percent = chosen.name in SHARES and all(abs(value) <= 1 for value in values)
    metric = dataclasses.replace(TASKS["classification"].metric, is_share=percent)
    numbers = {key: metric for key in rows[0] if key.startswith(("best", "test"))}
    numbers["seconds"] = dataclasses.replace(metric, is_share=False)
    heading = title if title is not None else _title(shown)
    budgets = {within(each.result.goals) for each in shown}
    settings = {"searches": searches, "name": name, "labels": labels, "goal": goal}
    with runs.start("search compare", {**settings, "out": out}, out) as run:
        run.rows = rows
        write_table(Path(out), f"{heading}: {chosen.name}", rows, numbers)
        write_figure(
            Path(out) / "best-so-far",
            plot_best_so_far,
            series,
            ylabel=f"best {chosen.name} so far",
            title="\n".join([heading, *(budgets if len(budgets) == 1 else ())]),
            baselines=baselines,
            percent=percent,
        )
    return rows


def _read(source: str | Path | tuple[str, str], name: str | None) -> Iterator[Compared]:
    """The searches that a folder, file or URL names."""
    storage, own = source if isinstance(source, tuple) else _split(str(source))
    url, own = find_storage(storage, own or name)
    shown = without_password(url) if "://" in storage else storage
    found = [own] if own else study_names(url)
    if not found:
        raise ConfigError(f"there is no search in '{shown}'.")
    for study in found:
        noted, result = load_search(url, study)
        job = noted["job"]
        settings = None if job is None else {"job": job["name"], **_flat(job["settings"])}
        yield Compared(shown, noted["name"], url, settings, result)


def _split(source: str) -> tuple[str, str | None]:
    """`OUT:NAME` as a storage and the name of a study, if there is one.

    >>> _split("postgresql://user:secret@host:5432/db:tpe")
    ('postgresql://user:secret@host:5432/db', 'tpe')
    """
    if "://" in source:
        parts = re.fullmatch(r"(\w[^:]*://[^/]*/[^:?]*):(.+)", source)
        return (parts[1], parts[2]) if parts else (source, None)
    places = [i for i, letter in enumerate(source) if letter == ":"]
    for place in [] if Path(source).exists() else places:
        if Path(source[:place]).exists():
            return source[:place], source[place + 1 :]
    return source, None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names.

    >>> _flat({"sampler": "tpe", "budgets": {"bits": 4}})
    {'sampler': 'tpe', 'budgets.bits': 4}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _common_goal(found: Sequence[Compared], name: str | None) -> Goal:
    """What the searches are compared by."""
    if not found:
        raise ConfigError("compare: expected at least one search.")
    if name is not None:
        return Goal(name, _direction(found, name))  # type: ignore[arg-type]
    firsts = {each.label: objectives_of(each.result.goals)[0] for each in found}
    goals = {(goal.name, goal.direction): label for label, goal in firsts.items()}
    if len(goals) > 1:
        listed = ", ".join(f"{goal} ({direction}) in {t}" for (goal, direction), t in goals.items())
        raise ConfigError(
            f"these searches have different goals, {listed}: name one that all measured, "
            "--goal NAME."
        )
    return next(iter(firsts.values()))


def _direction(found: Sequence[Compared], name: str) -> str:
    from chop.actions.search import nas, precision

    known: dict[str, str] = {**nas.DIRECTIONS, **precision.DIRECTIONS}
    known |= {goal.name: goal.direction for each in found for goal in each.result.goals}
    check_known(name, known, "goal")
    return known[name]


def _judged(search: Compared, goal: Goal) -> Compared:
    """A search with one objective, within its own budgets."""
    for trial in search.result.measured:
        check_known(goal.name, trial.values, f"search {search.label} did not measure")
    limits = constraints_of(search.result.goals)
    return dataclasses.replace(search, result=Result((goal, *limits), search.result.trials))


def _curves(found: Sequence[Compared], labels: Sequence[str]) -> dict[str, list[Compared]]:
    """Label -> the searches of a curve, those without a trial within their budgets left out."""
    kept: dict[str, list[Compared]] = {}
    for label, group in _labeled(found, labels):
        for search in group:
            if any(math.isfinite(value) for _, value in search.result.best_so_far()):
                kept.setdefault(label, []).append(search)
                continue
            warn_once(
                f"search {search.label} is left out: it measured nothing finite within its budgets."
            )
    if not kept:
        raise ConfigError("none of these searches measured anything finite within its budgets.")
    return kept


def _labeled(found: Sequence[Compared], labels: Sequence[str]) -> list[tuple[str, list[Compared]]]:
    places = [(each.url, each.name) for each in found]
    twice = next(
        (each for each, at in zip(found, places, strict=True) if places.count(at) > 1), None
    )
    if twice is not None:
        raise ConfigError(f"search {twice.label} is given twice.")
    groups = _groups(found)
    if not labels:
        return list(zip(_labels_of(groups), groups, strict=True))
    if len(labels) == len(found):
        return [
            (label, [each for each, own in zip(found, labels, strict=True) if own == label])
            for label in dict.fromkeys(labels)
        ]
    if len(labels) != len(groups):
        raise ConfigError(
            f"labels: expected {len(found)}, one for each search"
            + (f", or {len(groups)}, one for each curve" if len(groups) < len(found) else "")
            + f", got {len(labels)}; the searches: {', '.join(each.label for each in found)}."
        )
    if len(set(labels)) < len(labels):
        raise ConfigError("labels: expected a different one for each curve.")
    return list(zip(labels, groups, strict=True))


def _groups(found: Sequence[Compared]) -> list[list[Compared]]:
    """Searches that differ in their seed alone, together; of equal seeds, each alone."""
    together: dict[str, list[Compared]] = {}
    for each in found:
        left_out = (*SEED_ALONE, *HOW_LONG)
        settings = {k: v for k, v in (each.settings or {}).items() if k not in left_out}
        key = json.dumps(settings, sort_keys=True) if settings else each.label
        together.setdefault(key, []).append(each)
    groups: list[list[Compared]] = []
    for group in together.values():
        seeds = {(each.settings or {}).get("seed") for each in group}
        groups += [group] if len(seeds) == len(group) else [[each] for each in group]
    return groups


def _labels_of(groups: Sequence[Sequence[Compared]]) -> list[str]:
    """Labels of the curves: the settings that differ; studies and sources where none does."""
    noted = [group[0].settings for group in groups if group[0].settings is not None]
    names = dict.fromkeys(("sampler", *(name for settings in noted for name in settings)))
    differing = [
        name
        for name in names
        if name not in SEED_ALONE and len({json.dumps(s.get(name)) for s in noted}) > 1
    ]
    first = [name for name in differing if name not in HOW_LONG] or ["sampler"]
    more = [*first, *(name for name in differing if name in HOW_LONG)]
    labels = [_label(group[0], first) for group in groups]
    labelers: tuple[Callable[[Compared], str], ...] = (
        lambda each: _label(each, more),
        lambda each: f"{each.name} ({each.source})",
    )
    for labeler in labelers:
        labels = [
            label if labels.count(label) == 1 else labeler(group[0])
            for label, group in zip(labels, groups, strict=True)
        ]
    return labels


def _label(search: Compared, names: Sequence[str]) -> str:
    if search.settings is None:
        return search.name
    return ", ".join(_format(name, search.settings.get(name)) for name in names)


def _format(name: str, value: Any) -> str:
    if value is None:
        return f"no {name}"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if name in ("sampler", "job") else f"{name}={text}"


def _title(found: Sequence[Compared]) -> str:
    """The model and data, where all searches have the same."""
    titles = {
        " on ".join(each.settings[key] for key in ("model", "dataset") if each.settings.get(key))
        for each in found
        if each.settings is not None
    }
    is_one = len(titles) == 1 and all(each.settings is not None for each in found)
    return titles.pop() if is_one else f"{len(found)} searches"


def _row(label: str, group: Sequence[Compared], runs: Sequence[Run]) -> dict[str, Any]:
    last = [run[-1][1] for run in runs]
    results = [each.result for each in group]
    at = {f"best at {count}": _best_at(runs, count) for count in COUNTS}
    return {
        "searches": label,
        "seeds": len(group),
        "trials": _range([len(result.trials) for result in results]),
        "measured": _range([len(result.measured) for result in results]),
        "best (mean)": mean(last),
        "best (median)": median(last),
        "best (least)": min(last),
        "best (greatest)": max(last),
        **at,
        "seconds": round(median(sum(t.seconds or 0 for t in r.trials) for r in results), 1),
    }


def _best_at(runs: Sequence[Run], count: int) -> float | None:
    """The median after so many trials; None unless all runs have measured as many."""
    if any(run[0][0] > count or run[-1][0] < count for run in runs):
        return None
    return median(value_at(run, count) for run in runs)


def _range(counts: Sequence[int]) -> int | str:
    low, high = min(counts), max(counts)
    return low if low == high else f"{low} to {high}"
