"""Search space: named categorical choices, their feasible combinations, distances, keys."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from chop.base.notices import warn_once
from chop.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Config = Mapping[str, str]
"""Name of each choice -> text of the option taken: plain JSON, the same in every process."""

ParamEncoding = Literal["text", "index"]
"""Parameter encoding in Optuna: an option's text, or its index among the options (CMA-ES)."""


Rule = Callable[[Mapping[str, Any]], str | None]
"""Feasibility rule: values by choice -> the reason that excludes them, or None."""

MOST_OF_GRID = 100_000
"""Grid points that are scanned for an unvisited configuration."""


@dataclass(frozen=True)
class Choice:
    """Categorical parameter of a search space.

    Attributes:
        name: a layer's dotted name, a field of a model's configuration ...
        options: text -> value, ordered: neighbors should behave alike. Studies store the text; the
            value (a number, a format, a class) stays in memory.
        cost: text -> additive cost of the option, such as bits of the layer; None (default): no
            cost.
    """

    name: str
    options: Mapping[str, Any]
    cost: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigError(f"a choice's name: expected text, got {self.name!r}.")
        if not isinstance(self.options, Mapping) or not self.options:
            given = repr(self.options) if self.options else "none"
            raise ConfigError(f"choice '{self.name}': expected options by text, got {given}.")
        wrong = [text for text in self.options if not isinstance(text, str)]
        if wrong:
            raise ConfigError(
                f"choice '{self.name}': an option's text is {wrong[0]!r}, expected a str; its "
                "value may be anything."
            )
        object.__setattr__(self, "options", dict(self.options))
        if self.cost is not None:
            self._check_cost(self.cost)
            object.__setattr__(self, "cost", dict(self.cost))

    def _check_cost(self, cost: Mapping[str, float]) -> None:
        for text in cost:
            if text not in self.options:
                nearest = did_you_mean(text, self.options)
                raise ConfigError(
                    f"choice '{self.name}': cost of unknown option '{text}': {nearest}"
                )
        for text in self.options:
            if not math.isfinite(cost.get(text, math.nan)):
                raise ConfigError(f"choice '{self.name}': option '{text}' has no finite cost.")

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The options' texts, in order."""
        return tuple(self.options)


def _always_feasible(values: Mapping[str, Any]) -> str | None:
    """The rule of a space whose choices are independent of one another."""
    return None


def all_active(values: Mapping[str, Any]) -> Collection[str]:
    """The rule of a space in which every choice always counts."""
    return values.keys()


def as_it_is(config: Config) -> Config:
    """The form of a space in which different configurations are different things."""
    return config


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Search space: one option of each choice, less the infeasible combinations.

    Attributes:
        choices: at least one, in the order of listing, sampling and printing.
        infeasible: values by choice -> the reason that excludes the combination, or None. Default:
            every combination is feasible.
        canonical: configuration -> representative of all equivalent ones, which share its key and
            are measured once. Default: each represents itself.
        active: values by choice -> names of the active choices (conditional space). Inactive ones,
            such as layers beyond a chosen depth, take their first option (`folded`), and samplers
            do not vary them. Default: all are active.

    Example:
        >>> space = SearchSpace((Choice("heads", {"2": 2, "3": 3}), Choice("size", {"64": 64})),
        ...     infeasible=lambda v: "heads must divide size" if v["size"] % v["heads"] else None)
        >>> space.size
        2
        >>> [space.why_infeasible(config) for config in space.grid()]
        [None, 'heads must divide size']
    """

    choices: tuple[Choice, ...]
    infeasible: Rule = field(default=_always_feasible)
    canonical: Callable[[Config], Config] = field(default=as_it_is)
    active: Callable[[Mapping[str, Any]], Collection[str]] = field(default=all_active)

    def __post_init__(self) -> None:
        if isinstance(self.choices, Choice):
            raise ConfigError("choices: expected a tuple of choices, got one choice.")
        object.__setattr__(self, "choices", tuple(self.choices))
        names = [choice.name for choice in self.choices]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not names:
            raise ConfigError("a search space needs at least one choice.")
        if twice is not None:
            raise ConfigError(f"two choices are called '{twice}'.")

    @cached_property
    def by_name(self) -> dict[str, Choice]:
        """The choices by name."""
        return {choice.name: choice for choice in self.choices}

    @property
    def size(self) -> int:
        """Number of configurations, infeasible ones included."""
        return math.prod(len(choice.options) for choice in self.choices)

    def check(self, config: Config) -> None:
        """Raises ConfigError unless `config` takes one option of each choice."""
        if not isinstance(config, Mapping):
            raise ConfigError(f"expected a mapping of choices, got {config!r}.")
        for name, text in config.items():
            if name not in self.by_name:
                raise ConfigError(f"unknown choice '{name}': {did_you_mean(name, self.by_name)}")
            options = self.by_name[name].options
            if text not in options:
                nearest = did_you_mean(text, options)
                raise ConfigError(f"choice '{name}': unknown option '{text}': {nearest}")
        missing = next((name for name in self.by_name if name not in config), None)
        if missing is not None:
            raise ConfigError(f"choice '{missing}' is missing.")

    def values(self, config: Config) -> dict[str, Any]:
        """The options' values by choice."""
        self.check(config)
        return {choice.name: choice.options[config[choice.name]] for choice in self.choices}

    def why_infeasible(self, config: Config) -> str | None:
        """The reason that excludes a configuration; None of a feasible one."""
        return self.infeasible(self.values(config))

    def is_feasible(self, config: Config) -> bool:
        """True where no rule excludes the configuration."""
        return self.infeasible is _always_feasible or self.why_infeasible(config) is None

    def cost(self, config: Config) -> float:
        """The sum of the options' costs; choices without costs add nothing."""
        self.check(config)
        return sum(c.cost[config[c.name]] for c in self.choices if c.cost is not None)

    def folded(self, config: Config) -> Config:
        """The configuration that stands for all that give the same thing."""
        config = self.canonical(config)
        if self.active is all_active:
            return config
        while True:  # what folds may be what decided whether another choice counts
            live = self.active(self.values(config))
            folded = {
                c.name: config[c.name] if c.name in live else c.texts[0] for c in self.choices
            }
            if folded == config:
                return folded
            config = folded

    def key(self, config: Config) -> str:
        """A hash of the folded form, the same in every process and for any order of choices."""
        self.check(config)
        text = json.dumps(dict(self.folded(config)), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def at(self, index: int) -> Config:
        """Configuration number `index` of the grid, where the last choice varies fastest."""
        if not 0 <= index < self.size:
            raise IndexError(f"the grid has {self.size} configurations, asked for {index}.")
        taken: dict[str, str] = {}
        for choice in reversed(self.choices):
            index, place = divmod(index, len(choice.texts))
            taken[choice.name] = choice.texts[place]
        return {choice.name: taken[choice.name] for choice in self.choices}

    def grid(self) -> Iterator[Config]:
        """Every configuration, one at a time: the product is never held."""
        return map(self.at, range(self.size))

    def first(self, is_wanted: Callable[[Config], bool], known: int = 0) -> Config | None:
        """The first wanted configuration of the grid; of a large one, its beginning is looked at.

        Args:
            is_wanted: whether to take one.
            known: how many of the beginning are known not to be wanted.
        """
        looked = MOST_OF_GRID + known
        found = next(filter(is_wanted, itertools.islice(self.grid(), looked)), None)
        if found is None and looked < self.size:
            warn_once(
                f"no unvisited feasible configuration was found near the last one, at random, or "
                f"among the first {looked} of {self.size:.3g}: others are not looked for."
            )
        return found

    def neighbors(self, config: Config, changes: int = 1) -> Iterator[Config]:
        """Every configuration that differs from `config` in exactly so many choices."""
        self.check(config)
        for chosen in itertools.combinations(self.choices, changes):
            others = [[t for t in c.texts if t != config[c.name]] for c in chosen]
            for texts in itertools.product(*others):
                changed = zip((c.name for c in chosen), texts, strict=True)
                yield {**config, **dict(changed)}

    def distributions(self, encoding: ParamEncoding = "text") -> dict[str, BaseDistribution]:
        """What Optuna calls the choices: categories by text, or whole numbers by place."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        if encoding == "index":
            return {c.name: IntDistribution(0, len(c.texts) - 1) for c in self.choices}
        return {c.name: CategoricalDistribution(c.texts) for c in self.choices}

    def suggest(self, trial: Trial, encoding: ParamEncoding = "text") -> Config:
        """Takes an Optuna trial's suggestions, for code that drives Optuna itself.

        Raises:
            optuna.TrialPruned: the configuration is infeasible; nothing was measured.
        """
        from optuna import TrialPruned

        config = self.from_params(
            {c.name: trial.suggest_int(c.name, 0, len(c.texts) - 1) for c in self.choices}
            if encoding == "index"
            else {c.name: trial.suggest_categorical(c.name, c.texts) for c in self.choices}
        )
        reason = self.why_infeasible(config)
        if reason is not None:
            raise TrialPruned(reason)
        return config

    def from_params(self, params: Mapping[str, Any]) -> Config:
        """The configuration that a stored trial's parameters encode."""
        config = {
            choice.name: choice.texts[value] if isinstance(value, int) else value
            for choice in self.choices
            if (value := params.get(choice.name)) is not None
        }
        self.check(config)
        return config

    def to_params(self, config: Config, encoding: ParamEncoding = "text") -> dict[str, str | int]:
        """A configuration as Optuna stores it; the inverse of `from_params`."""
        self.check(config)
        if encoding == "text":
            return {choice.name: config[choice.name] for choice in self.choices}
        return {c.name: c.texts.index(config[c.name]) for c in self.choices}
