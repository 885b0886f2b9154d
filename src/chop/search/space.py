"""Search space: named categorical choices, their feasible combinations, distances, keys."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from chop.base.notices import warn_once
from chop.config import convert, with_checked_init
from chop.errors import ConfigError, check_known, describe, did_you_mean

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Config = Mapping[str, str]
"""Name of each choice -> text of the selected option; plain JSON, equal in all processes."""

ParamEncoding = Literal["text", "index"]
"""Parameter encoding in Optuna: option text, or index of the option (CMA-ES)."""


Rule = Callable[[Mapping[str, Any]], str | None]
"""Feasibility rule: values by choice -> the reason that excludes them, or None."""

MAX_GRID_POINTS = 100_000
"""Maximum number of grid points scanned for an unvisited configuration."""


@with_checked_init
@dataclass(frozen=True)
class Choice:
    """Categorical parameter of a search space.

    Attributes:
        name: name of the choice, such as a layer's dotted name or a field of a model config.
        options: text -> value, ordered so that neighbors behave alike. Studies store the text. The
            value (a number, a format, a class) stays in memory.
        cost: text -> additive cost of the option, such as bits of the layer. None (default): no
            cost.

    Example: `Choice("heads", {"2": 2, "4": 4})`.
    """

    name: str
    options: Mapping[str, Any]
    cost: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"name of a choice: expected a str, got {describe(self.name)}.")
        if not isinstance(self.options, Mapping) or not self.options:
            given = "none" if isinstance(self.options, Mapping) else describe(self.options)
            given += _as_choices({self.name: self.options}, "write {}")
            raise ConfigError(f"choice '{self.name}': expected options by text, got {given}.")
        wrong = [text for text in self.options if not isinstance(text, str)]
        if wrong:
            raise ConfigError(
                f"choice '{self.name}': an option's text is "
                f"{describe(wrong[0])}, expected a str; its "
                "value may be anything."
            )
        object.__setattr__(self, "options", dict(self.options))
        if self.cost is not None:
            self._check_cost(self.cost)
            object.__setattr__(self, "cost", dict(self.cost))

    def _check_cost(self, cost: Mapping[str, float]) -> None:
        convert(cost, Mapping[str, float], f"choice '{self.name}': cost")
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
        """Texts of the options, in order."""
        return tuple(self.options)


def check_takes(function: Any, count: int, expected: str) -> None:
    """Raises ConfigError unless a function takes `count` arguments.

    Args:
        function: the function; one without a signature is accepted.
        count: number of arguments.
        expected: start of the message.
    """
    if not callable(function):
        raise ConfigError(f"{expected}, got {describe(function)}.")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise ConfigError(f"{expected}: {error}.") from None
    except ValueError:  # some of those written in C have no signature
        return


def _always_feasible(values: Mapping[str, Any]) -> str | None:
    """Default rule: all combinations are feasible."""
    return None


def all_active(values: Mapping[str, Any]) -> Collection[str]:
    """Default rule: all choices are active."""
    return values.keys()


def as_it_is(config: Config) -> Config:
    """Default canonical form: each configuration represents itself."""
    return config


def _as_choices(table: Mapping[Any, Any], advice: str = "pass ({},)") -> str:
    """Returns advice to write lists of options by name as choices.

    >>> _as_choices({"heads": [2, 4]})
    "; pass (Choice('heads', {'2': 2, '4': 4}),)"
    """
    lists = {name: each for name, each in table.items() if isinstance(each, list | tuple | range)}
    written = [f"Choice({name!r}, { {str(x): x for x in each}!r})" for name, each in lists.items()]
    return f"; {advice.format(', '.join(written))}" if lists else ""


# Compared by identity, because rules are functions; caches of codings depend on it.
@with_checked_init
@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Search space: one option per choice, without infeasible combinations.

    Attributes:
        choices: at least one choice, in the order of listing, sampling and printing.
        infeasible: values by choice -> reason that excludes the combination, or None. True excludes
            it without a reason. Default: all combinations are feasible.
        canonical: configuration -> representative of all equivalent ones, which share its key and
            are measured once. Default: the configuration itself.
        active: values by choice -> names of the active choices (conditional space). Inactive
            choices, such as layers beyond a chosen depth, take their first option (`folded`), and
            samplers do not vary them. Default: all are active.

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
        given = tuple(self.choices) if isinstance(self.choices, Iterable) else (self.choices,)
        wrong = [each for each in given if not isinstance(each, Choice)]
        if wrong or isinstance(self.choices, Choice):
            table = self.choices if isinstance(self.choices, Mapping) else {}
            got = "a table" if table else describe((wrong or given)[0])
            raise ConfigError(
                f"choices: expected a tuple of choices, got {got}{_as_choices(table)}."
            )
        object.__setattr__(self, "choices", given)
        for name in ("infeasible", "canonical", "active"):
            one = "a configuration" if name == "canonical" else "the values by choice"
            check_takes(getattr(self, name), 1, f"{name}: expected a function of {one}")
        names = [choice.name for choice in self.choices]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not names:
            raise ConfigError("a search space needs at least one choice.")
        if twice is not None:
            raise ConfigError(f"two choices are called '{twice}'.")

    @cached_property
    def by_name(self) -> dict[str, Choice]:
        """Choices by name."""
        return {choice.name: choice for choice in self.choices}

    @property
    def size(self) -> int:
        """Number of configurations, infeasible ones included."""
        return math.prod(len(choice.options) for choice in self.choices)

    def check(self, config: Config) -> None:
        """Raises ConfigError unless `config` has one valid option for each choice."""
        if not isinstance(config, Mapping):
            raise ConfigError(f"expected a mapping of choices, got {describe(config)}.")
        for name, text in config.items():
            if name not in self.by_name:
                raise ConfigError(f"unknown choice '{name}': {did_you_mean(name, self.by_name)}")
            options = self.by_name[name].options
            if text not in options:
                nearest = did_you_mean(text, options)
                raise ConfigError(f"choice '{name}': unknown option {describe(text)}: {nearest}")
        missing = next((name for name in self.by_name if name not in config), None)
        if missing is not None:
            raise ConfigError(f"choice '{missing}' is missing.")

    def values(self, config: Config) -> dict[str, Any]:
        """Returns the option values by choice."""
        self.check(config)
        return {choice.name: choice.options[config[choice.name]] for choice in self.choices}

    def why_infeasible(self, config: Config) -> str | None:
        """Returns the reason that excludes a configuration, or None for a feasible one."""
        reason = self.infeasible(self.values(config))
        if isinstance(reason, bool):
            return "excluded by the rule `infeasible`" if reason else None
        if reason is not None and not isinstance(reason, str):
            raise ConfigError(
                f"infeasible: expected the reason as a str, or None, got {describe(reason)}."
            )
        return reason

    def is_feasible(self, config: Config) -> bool:
        """Returns whether no rule excludes the configuration."""
        # Without a rule, the values need not be looked up. Samplers ask this very often.
        return self.infeasible is _always_feasible or self.why_infeasible(config) is None

    def cost(self, config: Config) -> float:
        """Returns the sum of the options' costs; choices without costs add 0."""
        self.check(config)
        return sum(c.cost[config[c.name]] for c in self.choices if c.cost is not None)

    def folded(self, config: Config) -> Config:
        """Returns the representative of all equivalent configurations."""
        config = self.canonical(config)
        if self.canonical is not as_it_is:
            self.check(config)
        if self.active is all_active:
            return config
        while True:  # folding a choice may change which other choices are active
            live = self._active_names(config)
            folded = {
                c.name: config[c.name] if c.name in live else c.texts[0] for c in self.choices
            }
            if folded == config:
                return folded
            config = folded

    def _active_names(self, config: Config) -> Collection[str]:
        live = self.active(self.values(config))
        if not isinstance(live, Collection) or isinstance(live, str):
            raise ConfigError(f"active: expected a list of choices, got {describe(live)}.")
        for name in live:
            check_known(name, self.by_name, "active: unknown choice")
        return live

    def key(self, config: Config) -> str:
        """Returns a hash of the folded form, independent of process and order of choices."""
        self.check(config)
        text = json.dumps(dict(self.folded(config)), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def at(self, index: int) -> Config:
        """Returns configuration `index` of the grid, whose last choice varies fastest."""
        if not 0 <= index < self.size:
            raise ConfigError(f"the grid has {self.size} configurations, asked for {index}.")
        taken: dict[str, str] = {}
        # The digits of the index in a mixed radix, lowest first.
        for choice in reversed(self.choices):
            index, place = divmod(index, len(choice.texts))
            taken[choice.name] = choice.texts[place]
        return {choice.name: taken[choice.name] for choice in self.choices}

    def grid(self) -> Iterator[Config]:
        """Yields all configurations one at a time."""
        return map(self.at, range(self.size))

    def first(self, is_wanted: Callable[[Config], bool], known: int = 0) -> Config | None:
        """Returns the first accepted configuration of the grid, or of the start of a large grid.

        Args:
            is_wanted: returns whether to accept a configuration.
            known: number of configurations at the start that are known to be rejected.
        """
        looked = MAX_GRID_POINTS + known
        config = next(filter(is_wanted, itertools.islice(self.grid(), looked)), None)
        if config is None and looked < self.size:
            warn_once(
                "no unvisited feasible configuration was found near the last one, at random, or "
                f"among the first {looked} of {self.size:.3g}: the remaining ones were not "
                "examined."
            )
        return config

    def neighbors(self, config: Config, changes: int = 1) -> Iterator[Config]:
        """Yields all configurations that differ from `config` in exactly `changes` choices."""
        self.check(config)
        for chosen in itertools.combinations(self.choices, changes):
            others = [[t for t in c.texts if t != config[c.name]] for c in chosen]
            for texts in itertools.product(*others):
                changed = zip((c.name for c in chosen), texts, strict=True)
                yield {**config, **dict(changed)}

    def distributions(self, encoding: ParamEncoding = "text") -> dict[str, BaseDistribution]:
        """Returns the choices as Optuna distributions: categories of texts, or integer indices."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        if encoding == "index":
            return {c.name: IntDistribution(0, len(c.texts) - 1) for c in self.choices}
        return {c.name: CategoricalDistribution(c.texts) for c in self.choices}

    def suggest(self, trial: Trial, encoding: ParamEncoding = "text") -> Config:
        """Suggests a configuration from an Optuna trial, for code that drives Optuna itself.

        Raises:
            ConfigError: if it is no trial.
            optuna.TrialPruned: the configuration is infeasible; nothing was measured.
        """
        from optuna import TrialPruned
        from optuna.trial import BaseTrial

        if not isinstance(trial, BaseTrial):
            raise ConfigError(f"suggest: expected a trial of Optuna, got {describe(trial)}.")
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
        """Decodes the parameters of a stored trial."""
        config = {
            choice.name: choice.texts[value] if isinstance(value, int) else value
            for choice in self.choices
            if (value := params.get(choice.name)) is not None
        }
        self.check(config)
        return config

    def to_params(self, config: Config, encoding: ParamEncoding = "text") -> dict[str, str | int]:
        """Encodes a configuration as Optuna parameters; inverse of `from_params`."""
        self.check(config)
        if encoding == "text":
            return {choice.name: config[choice.name] for choice in self.choices}
        return {c.name: c.texts.index(config[c.name]) for c in self.choices}
