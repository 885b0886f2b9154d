"""Registry of samplers and pruners by name, Optuna's or ours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chop.base.plugins import Registry
from chop.errors import ConfigError, did_you_mean
from chop.search.space import ParamEncoding, SearchSpace

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


class SamplerRow(NamedTuple):
    """One sampler.

    Attributes:
        make: builds it for a space and a seed; called for every trial, so that its draws depend on
            the seed and the trial's place alone: a resumed search draws what an unbroken one would.
        encoding: how it takes options, as text or as index.
        max_goals: how many objectives it takes.
        constraint_settings: whether `make` takes those of Optuna 4 for a search with constraints.
    """

    make: Callable[..., BaseSampler]
    encoding: ParamEncoding = "text"
    max_goals: int = 1_000
    constraint_settings: bool = False


def _optuna(name: str, **settings: Any) -> Callable[..., BaseSampler]:
    def make(space: SearchSpace, seed: int, **more: Any) -> BaseSampler:
        import optuna

        from chop.search.optuna_study import without_experimental_warnings

        with without_experimental_warnings():
            sampler: BaseSampler = getattr(optuna.samplers, name)(seed=seed, **settings, **more)
        return sampler

    return make


def _grid(space: SearchSpace, seed: int) -> BaseSampler:
    from chop.search.joint import LazyGridSampler

    return LazyGridSampler(space)


def _sensitivity(space: SearchSpace, seed: int) -> BaseSampler:
    from chop.search.samplers import SensitivitySampler

    return SensitivitySampler(space, seed)


def _sampler_row(name: str, value: Any) -> SamplerRow:
    """Makes a row of a sampler of another package: a `SamplerRow`, or what makes a sampler."""
    if isinstance(value, SamplerRow):
        return value
    if not callable(value):
        expected = "a SamplerRow, or a function or class that takes a space and a seed"
        raise SAMPLERS.misfit(name, value, expected)
    return SamplerRow(value)


SAMPLERS: Registry[SamplerRow] = Registry(
    "samplers",
    {
        "sensitivity": SamplerRow(_sensitivity),
        "random": SamplerRow(_optuna("RandomSampler")),
        "grid": SamplerRow(_grid),
        "tpe": SamplerRow(_optuna("TPESampler"), constraint_settings=True),
        "nsga2": SamplerRow(_optuna("NSGAIISampler"), constraint_settings=True),
        "cmaes": SamplerRow(
            _optuna("CmaEsSampler", warn_independent_sampling=False), "index", max_goals=1
        ),
        "gp": SamplerRow(_optuna("GPSampler"), constraint_settings=True),
    },
    as_row=_sampler_row,
)
"""Samplers by name: those of chop, and those of other packages."""

PRUNERS = {
    "asha": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "median": "MedianPruner",
}


def sampler_row(sampler: str | BaseSampler) -> SamplerRow:
    """The row of a sampler's name; a sampler object is a row of its own.

    Raises:
        ConfigError: no sampler has that name.
    """
    if not isinstance(sampler, str):
        return SamplerRow(lambda space, seed: sampler)
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler '{sampler}': {did_you_mean(sampler, SAMPLERS)}")
    return SAMPLERS[sampler]


def make_pruner(pruner: str | BasePruner | None) -> BasePruner:
    """The pruner of that name, or the object itself; None never prunes.

    Raises:
        ConfigError: no pruner has that name.
    """
    import optuna

    if pruner is None:
        return optuna.pruners.NopPruner()
    if not isinstance(pruner, str):
        return pruner
    if pruner not in PRUNERS:
        raise ConfigError(f"pruner '{pruner}': {did_you_mean(pruner, PRUNERS)}")
    found: BasePruner = getattr(optuna.pruners, PRUNERS[pruner])()
    return found


def derive_seed(seed: int, parts: Sequence[object]) -> int:
    """A 32-bit seed drawn from another seed and what it is for, the same in every process."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
