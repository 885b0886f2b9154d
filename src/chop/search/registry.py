"""Registry of samplers and pruners by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chop.base.plugins import Registry
from chop.errors import ConfigError, describe, did_you_mean
from chop.search.space import ParamEncoding, SearchSpace

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


class SamplerRow(NamedTuple):
    """Registered sampler.

    Attributes:
        make: builds the sampler from a space and a seed. It is called for each trial, so that draws
            depend only on the seed and the number of the trial, and a resumed search equals an
            uninterrupted one.
        encoding: parameter encoding: text or index.
        max_goals: maximum number of objectives.
        constraint_settings: True if `make` accepts Optuna 4's constraint arguments.
        summary: the configurations that it proposes, for tables.
    """

    make: Callable[..., BaseSampler]
    encoding: ParamEncoding = "text"
    max_goals: int = 1_000
    constraint_settings: bool = False
    summary: str = ""


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
    """Returns the row of a plugin's sampler: a `SamplerRow`, or a factory."""
    if isinstance(value, SamplerRow):
        return value
    if not callable(value):
        expected = "a SamplerRow, or a function or class that takes a space and a seed"
        raise SAMPLERS.misfit(name, value, expected)
    return SamplerRow(value)


SAMPLERS: Registry[SamplerRow] = Registry(
    "samplers",
    {
        "sensitivity": SamplerRow(
            _sensitivity,
            summary="Bayesian optimization, which starts with all choices at their cheapest, "
            "largest and middle option",
        ),
        "random": SamplerRow(_optuna("RandomSampler"), summary="independent random configurations"),
        "grid": SamplerRow(_grid, summary="all configurations in order"),
        "tpe": SamplerRow(
            _optuna("TPESampler"),
            constraint_settings=True,
            summary="Optuna's tree-structured Parzen estimator; its first ten trials are random",
        ),
        "nsga2": SamplerRow(
            _optuna("NSGAIISampler"),
            constraint_settings=True,
            summary="Optuna's genetic algorithm NSGA-II, for several goals",
        ),
        "cmaes": SamplerRow(
            _optuna("CmaEsSampler", warn_independent_sampling=False),
            "index",
            max_goals=1,
            summary="Optuna's CMA-ES (evolution strategy), for one goal",
        ),
        "gp": SamplerRow(
            _optuna("GPSampler"),
            constraint_settings=True,
            summary="Optuna's Bayesian optimization with a Gaussian process",
        ),
    },
    as_row=_sampler_row,
)
"""Samplers by name, including those of plugins."""

PRUNERS = {
    "asha": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "median": "MedianPruner",
}
"""Pruners (early stopping of trials) by name, as classes of Optuna."""


def sampler_row(sampler: str | BaseSampler) -> SamplerRow:
    """Returns the row of a sampler name; a sampler object gets its own row.

    Raises:
        ConfigError: if the name is unknown.
    """
    if not isinstance(sampler, str):
        import optuna

        _check_kind("sampler", sampler, optuna.samplers.BaseSampler)
        if isinstance(sampler, optuna.samplers.GridSampler | optuna.samplers.BruteForceSampler):
            raise ConfigError(
                f"sampler: Optuna's {type(sampler).__name__} stops studies itself; use "
                "sampler='grid', which proposes each configuration once."
            )
        return SamplerRow(lambda space, seed: sampler)
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler '{sampler}': {did_you_mean(sampler, SAMPLERS)}")
    return SAMPLERS[sampler]


def make_pruner(pruner: str | BasePruner | None) -> BasePruner:
    """Returns a pruner by name, or the given object; None disables pruning.

    Raises:
        ConfigError: if the name is unknown.
    """
    import optuna

    if pruner is None:
        return optuna.pruners.NopPruner()
    if not isinstance(pruner, str):
        _check_kind("pruner", pruner, optuna.pruners.BasePruner)
        return pruner
    if pruner not in PRUNERS:
        raise ConfigError(f"pruner '{pruner}': {did_you_mean(pruner, PRUNERS)}")
    instance: BasePruner = getattr(optuna.pruners, PRUNERS[pruner])()
    return instance


def _check_kind(setting: str, given: object, kind: type) -> None:
    if not isinstance(given, kind):
        raise ConfigError(
            f"{setting}: expected a name or Optuna's {kind.__name__}, got {describe(given)}."
        )


def derive_seed(seed: int, parts: Sequence[object]) -> int:
    """Returns a 32-bit seed derived from a seed and its purpose, equal in all processes."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
