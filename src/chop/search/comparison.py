"""Comparison of searches: read from storages, grouped into curves, labeled by settings."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.base.notices import warn_once
from chop.errors import ConfigError, check_known
from chop.search.location import without_password
from chop.search.objective import Goal, select_constraints
from chop.search.reading import find_storage, load_search, study_names
from chop.search.result import Result

HOW_LONG = ("trials", "workers", "device")
"""Settings used as labels only if all others are equal."""
SEED_ALONE = ("seed", "out", "name", "keep", "storage")
"""Settings that may differ between the searches of one curve."""


@dataclass(frozen=True)
class Compared:
    """Search in a comparison.

    Attributes:
        source: location of the search, without a password.
        name: name of its study.
        url: URL of its storage.
        settings: settings of its job, nested ones by dotted names. None if a user's program ran it.
        result: trials, ranked by the goal of the comparison.
    """

    source: str
    name: str
    url: str
    settings: Mapping[str, Any] | None
    result: Result

    @property
    def label(self) -> str:
        """Name of the search in messages."""
        return f"{self.source}:{self.name}"


def read_compared(source: str | Path | tuple[str, str], name: str | None) -> Iterator[Compared]:
    """Reads the searches at a folder, file or URL."""
    storage, own = source if isinstance(source, tuple) else _split(str(source))
    url, own = find_storage(storage, own or name)
    location = without_password(url) if "://" in storage else storage
    names = [own] if own else study_names(url)
    if not names:
        raise ConfigError(f"no search found in '{location}'.")
    for study in names:
        stored, result = load_search(url, study)
        job = stored["job"]
        settings = None if job is None else {"job": job["name"], **_flat(job["settings"])}
        yield Compared(location, stored["name"], url, settings, result)


def _split(source: str) -> tuple[str, str | None]:
    """Splits `OUT:NAME` into a storage and the name of a study, if there is one.

    >>> _split("postgresql://user:secret@host:5432/db:tpe")
    ('postgresql://user:secret@host:5432/db', 'tpe')
    """
    if "://" in source:
        parts = re.fullmatch(r"(\w[^:]*://[^/]*/[^:?]*):(.+)", source)
        return (parts[1], parts[2]) if parts else (source, None)
    # A path may contain colons itself, so the first existing prefix is the storage.
    places = [i for i, letter in enumerate(source) if letter == ":"]
    for place in [] if Path(source).exists() else places:
        if Path(source[:place]).exists():
            return source[:place], source[place + 1 :]
    return source, None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested settings to dotted names.

    >>> _flat({"sampler": "tpe", "budgets": {"bits": 4}})
    {'sampler': 'tpe', 'budgets.bits': 4}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def judged(search: Compared, goal: Goal) -> Compared:
    """Returns the search ranked by one objective under its own budgets."""
    for trial in search.result.measured:
        check_known(goal.name, trial.values, f"search {search.label} did not measure")
    limits = select_constraints(search.result.goals)
    return dataclasses.replace(search, result=Result((goal, *limits), search.result.trials))


def build_curves(searches: Sequence[Compared], labels: Sequence[str]) -> dict[str, list[Compared]]:
    """Returns label -> searches of a curve, without searches that have no trial within budgets."""
    curves: dict[str, list[Compared]] = {}
    for label, group in _labeled(searches, labels):
        for search in group:
            if any(math.isfinite(value) for _, value in search.result.best_so_far()):
                curves.setdefault(label, []).append(search)
                continue
            warn_once(
                f"search {search.label} is omitted: no trial has a finite value within its budgets."
            )
    if not curves:
        raise ConfigError("no search has a trial with a finite value within its budgets.")
    return curves


def _labeled(
    searches: Sequence[Compared], labels: Sequence[str]
) -> list[tuple[str, list[Compared]]]:
    places = [(each.url, each.name) for each in searches]
    twice = next(
        (each for each, at in zip(searches, places, strict=True) if places.count(at) > 1), None
    )
    if twice is not None:
        raise ConfigError(f"search {twice.label} is given twice.")
    groups = _groups(searches)
    if not labels:
        return list(zip(_get_labels(groups), groups, strict=True))
    if len(labels) == len(searches):
        return [
            (label, [each for each, own in zip(searches, labels, strict=True) if own == label])
            for label in dict.fromkeys(labels)
        ]
    if len(labels) != len(groups):
        raise ConfigError(
            f"labels: expected {len(searches)}, one for each search"
            + (f", or {len(groups)}, one for each curve" if len(groups) < len(searches) else "")
            + f", got {len(labels)}; the searches: {', '.join(each.label for each in searches)}."
        )
    if len(set(labels)) < len(labels):
        raise ConfigError("labels: expected a distinct label for each curve.")
    return list(zip(labels, groups, strict=True))


def _groups(searches: Sequence[Compared]) -> list[list[Compared]]:
    """Groups searches that differ only in their seed; searches with equal seeds stay separate."""
    together: dict[str, list[Compared]] = {}
    for each in searches:
        excluded = (*SEED_ALONE, *HOW_LONG)
        settings = {k: v for k, v in (each.settings or {}).items() if k not in excluded}
        # Searches of user programs have no settings, so each has a separate group.
        key = json.dumps(settings, sort_keys=True) if settings else each.label
        together.setdefault(key, []).append(each)
    groups: list[list[Compared]] = []
    for group in together.values():
        seeds = {(each.settings or {}).get("seed") for each in group}
        # Two searches with one seed would count twice in the same curve.
        groups += [group] if len(seeds) == len(group) else [[each] for each in group]
    return groups


def _get_labels(groups: Sequence[Sequence[Compared]]) -> list[str]:
    """Returns labels of the curves: differing settings, or else studies and sources."""
    settings_by_group = [group[0].settings for group in groups if group[0].settings is not None]
    names = dict.fromkeys(
        ("sampler", *(name for settings in settings_by_group for name in settings))
    )
    differing = [
        name
        for name in names
        if name not in SEED_ALONE and len({json.dumps(s.get(name)) for s in settings_by_group}) > 1
    ]
    first = [name for name in differing if name not in HOW_LONG] or ["sampler"]
    more = [*first, *(name for name in differing if name in HOW_LONG)]
    labels = [_label(group[0], first) for group in groups]
    # Labels that are still equal get more settings, then the names of study and source.
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


def get_title(searches: Sequence[Compared], data_name: Callable[[str], str | None]) -> str:
    """Returns the model and data if they are the same in all searches."""
    titles = {_title(each.settings, data_name) for each in searches if each.settings is not None}
    is_one = len(titles) == 1 and all(each.settings is not None for each in searches)
    return titles.pop() if is_one else f"{len(searches)} searches"


def _title(settings: Mapping[str, Any], data_name: Callable[[str], str | None]) -> str:
    model = settings.get("model") or ""
    return " on ".join(filter(None, (model, settings.get("dataset") or data_name(model))))
