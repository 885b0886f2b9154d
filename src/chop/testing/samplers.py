"""Laws of samplers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.registry import sampler_row
from chop.testing.laws import obeys

OPTIONS = {"2": 2, "4": 4, "8": 8}
SPACE = SearchSpace(tuple(Choice(f"layer{i}", OPTIONS) for i in range(3)))
"""Search space with 27 configurations."""
FEW, MORE = 6, 14
"""Trials before and after resuming a search."""


def check_sampler(name: str) -> None:
    """Checks a sampler by all applicable laws, like chop's own samplers.

    Args:
        name: name in `chop.search.registry.SAMPLERS`.
    Raises:
        AssertionError: if a law is broken; the message names it.
        ConfigError: if there is no sampler of that name.

    Example:
        >>> check_sampler("random")
    """
    row = sampler_row(name)
    laws = [_every_trial_is_a_configuration_of_the_space, _a_seed_gives_one_search]
    laws += [_a_resumed_search_is_the_unbroken_one, _a_small_space_is_searched_to_its_end]
    if row.max_goals > 1:
        laws.append(_takes_several_objectives)
    for law in laws:
        obeys(law, name)


def measure(config: Mapping[str, str], report: Any) -> dict[str, float]:
    """Returns bits to minimize, with a unique best configuration, and a second objective."""
    values = [OPTIONS[config[choice.name]] for choice in SPACE.choices]
    bits = sum((i + 1) * value for i, value in enumerate(values))
    return {"bits": float(bits), "error": 1.0 / bits}


def list_trials(search: Search, until: int) -> list[Mapping[str, str]]:
    """Returns the configurations of a search in order."""
    return [trial.config for trial in search.run(until=until, progress=False).trials]


def _search_with(name: str, seed: int = 0, **settings: Any) -> Search:
    """Returns a search for the fewest bits, in memory by default."""
    settings = {"storage": "memory", **settings}
    return Search(SPACE, measure, Goal("bits", "minimize"), sampler=name, seed=seed, **settings)


def _every_trial_is_a_configuration_of_the_space(name: str) -> None:
    """Each trial has a valid option for each choice."""
    for config in list_trials(_search_with(name), MORE):
        assert set(config) == {choice.name for choice in SPACE.choices}, config
        assert all(option in OPTIONS for option in config.values()), config


def _a_seed_gives_one_search(name: str) -> None:
    """The same seed gives the same trials, also in another process."""
    first, second = (list_trials(_search_with(name, seed=3), MORE) for _ in range(2))
    assert first == second, f"trials of two searches differ: {first} and {second}"


def _a_resumed_search_is_the_unbroken_one(name: str) -> None:
    """A sampler derives its state from the study only."""
    with TemporaryDirectory() as folder:
        list_trials(_search_with(name, storage=None, out=Path(folder)), FEW)
        resumed = list_trials(_search_with(name, storage=None, out=Path(folder)), MORE)
    unbroken = list_trials(_search_with(name), MORE)
    assert resumed == unbroken, f"after trial {FEW} the search continued with {resumed[FEW:]}"


def _a_small_space_is_searched_to_its_end(name: str) -> None:
    """Each configuration is measured once, and the best one is found."""
    result = _search_with(name).run(until=SPACE.size, progress=False)
    assert len(result.measured) == SPACE.size, (
        f"{len(result.measured)} of {SPACE.size} were measured"
    )
    assert min(trial.values["bits"] for trial in result.measured) == 12.0


def _takes_several_objectives(name: str) -> None:
    """A search with two objectives gives a Pareto front."""
    goals = (Goal("bits", "minimize"), Goal("error", "minimize"))
    search = Search(SPACE, measure, goals, sampler=name, storage="memory")
    result = search.run(until=FEW, progress=False)
    assert len(result.measured) == FEW
