"""Architecture search over the models of one Hugging Face configuration.

A space varies fields of the configuration and replacements of square linear layers.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from chop.errors import ConfigError, check_known, describe, first_line
from chop.ir.dotted import deepsetattr
from chop.nn.identity import Identity
from chop.search.space import Choice, Config, Rule, SearchSpace

if TYPE_CHECKING:
    from optuna.trial import Trial
    from transformers import PreTrainedConfig

Replacement = Callable[[nn.Linear], nn.Module]
Shapes = Mapping[str, tuple[int, int]]
"""(in_features, out_features) of each linear layer by its dotted name."""


def linear(layer: nn.Linear) -> nn.Module:
    """Returns the layer itself."""
    return layer


def identity(layer: nn.Linear) -> nn.Module:
    """Returns an identity in place of a square layer."""
    return Identity()


USUAL_FIELDS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
"""Common size fields of configurations."""
SQUARE_LAYERS: dict[str, Replacement] = {"Linear": linear, "Identity": identity}
"""Replacements of linear layers with equally many inputs and outputs, by name."""


def by_name(options: Iterable[Any]) -> dict[str, Any]:
    """Maps options that are not text to storable names, such as class names.

    >>> list(by_name([nn.Linear, Identity, 8]))
    ['Linear', 'Identity', '8']

    Raises:
        ConfigError: if two of them have the same name.
    """
    named: dict[str, Any] = {}
    for option in options:
        name = option if isinstance(option, str) else getattr(option, "__name__", str(option))
        if named.setdefault(name, option) is not option:
            raise ConfigError(f"two options are named '{name}': pass a mapping, text -> option.")
    return named


def suggest_by_name(trial: Trial, name: str, options: Mapping[str, Any] | Iterable[Any]) -> Any:
    """Calls `trial.suggest_categorical` for classes, functions and other unstorable options.

    Only the names of `by_name` are stored, so that SQLite and other processes can read them.
    """
    named = dict(options) if isinstance(options, Mapping) else by_name(options)
    return named[trial.suggest_categorical(name, tuple(named))]


class Architectures:
    """Models of a Hugging Face class and configuration.

    Args:
        model: model that provides class and configuration, such as `chop.models.load_model("vit")`.
            Its weights are not used.
        fields: field of the configuration, or its common alias (such as `hidden_size` for GPT-2) ->
            values in order.
        square_layers: name -> replacement of a square linear layer. The first should be the layer
            itself. With fewer than two, layers are not replaced.
        infeasible: values by choice -> reason that excludes them, or None. It is checked before the
            rules of the model class. Default: no further rule.
        seed: seed of the initial weights.

    Raises:
        ConfigError: if the configuration has no such field (the message names the nearest one), or
            a field has no values or values of the wrong type.

    Example:
        >>> from chop.models import load_model
        >>> architectures = Architectures(load_model("vit"), {"hidden_size": [24, 48]})
        >>> space = architectures.space
        >>> len(space.choices), space.size, architectures.num_distinct()
        (9, 512, 512)
    """

    def __init__(
        self,
        model: nn.Module,
        fields: Mapping[str, Sequence[Any]],
        *,
        square_layers: Mapping[str, Replacement] | None = None,
        infeasible: Rule | None = None,
        seed: int = 0,
    ) -> None:
        self.model_class, self.base = type(model), _get_config(model)
        self.fields = _checked_fields(self.base, fields)
        self.square_layers = dict(SQUARE_LAYERS if square_layers is None else square_layers)
        self.rule, self.seed = infeasible, seed
        self._known: dict[tuple[Any, ...], Shapes | str] = {}

    @cached_property
    def space(self) -> SearchSpace:
        """Search space: a choice for each field and for each layer square in some model.

        A layer's choice is inactive in models that lack the layer or in which it is not square.
        Configurations that differ only in inactive choices share a key.
        """
        choices = [
            Choice(name, {_format(value): value for value in values})
            for name, values in self.fields.items()
        ]
        if len(self.square_layers) > 1:
            choices += [Choice(path, self.square_layers) for path in self._layers_square_somewhere]
        return SearchSpace(tuple(choices), self._why_infeasible, active=self._active)

    def build(self, config: Config) -> nn.Module:
        """Builds the model of a configuration with seeded weights, in evaluation mode.

        Raises:
            ConfigError: if the model cannot be built.
        """
        values = self.space.values(config)
        reason = self._why_infeasible(values)
        if reason is not None:
            raise ConfigError(f"this architecture is infeasible: {reason}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model_class(self._config_with(self._settings(values)))
        for path in self._square_in(values):
            layer = model.get_submodule(path)
            deepsetattr(model, path, values[path](layer))
        return model.eval()

    def num_distinct(self) -> int:
        """Returns the number of distinct feasible models in the space.

        Each combination of fields is built once without memory for weights.
        """
        total = 0
        for combination in itertools.product(*self.fields.values()):
            values = dict(zip(self.fields, combination, strict=True))
            if self._why_infeasible(values) is None:
                total += len(self.square_layers) ** len(self._square_in(values))
        return total

    def _settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.fields}

    def _config_with(self, settings: Mapping[str, Any]) -> PreTrainedConfig:
        return type(self.base).from_dict({**self.base.to_dict(), **settings})

    def _why_infeasible(self, values: Mapping[str, Any]) -> str | None:
        reason = self.rule(values) if self.rule is not None else None
        if reason is not None:
            return reason
        shapes = self._shapes(self._settings(values))
        return shapes if isinstance(shapes, str) else None

    def _active(self, values: Mapping[str, Any]) -> set[str]:
        """Returns the active choices of one model."""
        return {*self.fields, *self._square_in(values)}

    def _square_in(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the square layers of one model; none if it cannot be built."""
        shapes = self._shapes(self._settings(values))
        if isinstance(shapes, str) or len(self.square_layers) < 2:
            return []
        return [path for path, (inputs, outputs) in shapes.items() if inputs == outputs]

    def _shapes(self, settings: Mapping[str, Any]) -> Shapes | str:
        """Returns the shapes of the linear layers, or the reason why the model cannot be built."""
        key = tuple(settings.values())
        if key not in self._known:
            self._known[key] = self._build_shapes(settings)
        return self._known[key]

    def _build_shapes(self, settings: Mapping[str, Any]) -> Shapes | str:
        # Any exception of the model's class makes the configuration infeasible.
        try:
            config = self._config_with(settings)
            reason = _uneven_heads(config)
            if reason is not None:
                return reason
            with torch.device("meta"):
                skeleton = self.model_class(config)
        except Exception as error:
            return first_line(error)
        layers = skeleton.named_modules()
        return {
            path: (layer.in_features, layer.out_features)
            for path, layer in layers
            if type(layer) is nn.Linear
        }

    @cached_property
    def _layers_square_somewhere(self) -> list[str]:
        """Returns the layers that are square in some model, in the order of the deepest model.

        Fields that do not affect shapes are not combined with those that do. The first of their
        values, from the largest, with which a model can be built suffices.
        """
        falling = {name: _falling(values) for name, values in self.fields.items()}
        largest = {name: values[0] for name, values in falling.items()}
        start = self._shapes(largest)
        shaping = [
            name
            for name, values in falling.items()
            if any(_moves(start, self._shapes({**largest, name: value})) for value in values)
        ]
        layers: dict[str, None] = {}
        for combination in itertools.product(*(falling[name] for name in shaping)):
            fixed = dict(zip(shaping, combination, strict=True))
            layers.update(dict.fromkeys(self._square_with(fixed, falling)))
        order = [] if isinstance(start, str) else [*start]
        return sorted(layers, key=lambda path: order.index(path) if path in order else len(order))

    def _square_with(
        self, fixed: Mapping[str, Any], falling: Mapping[str, Sequence[Any]]
    ) -> list[str]:
        free = {name: values for name, values in falling.items() if name not in fixed}
        for combination in itertools.product(*free.values()):
            chosen = {**fixed, **dict(zip(free, combination, strict=True))}
            settings = {name: chosen[name] for name in self.fields}
            if not isinstance(self._shapes(settings), str):
                return self._square_in(settings)
        return []


def _get_config(model: nn.Module) -> PreTrainedConfig:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"{type(model).__name__} has no Hugging Face configuration with fields to "
            "search: use a Hugging Face model, such as 'vit', or a build function of your "
            "own to TrainedMeasure."
        )
    return model.config


def _checked_fields(
    base: PreTrainedConfig, fields: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[Any, ...]]:
    """Returns the values by the configuration's own field names."""
    kind = type(base).__name__
    aliases = base.attribute_map
    known = {*list(inspect.signature(type(base).__init__).parameters)[1:], *aliases}
    checked: dict[str, tuple[Any, ...]] = {}
    for name, values in fields.items():
        if name not in known:
            check_known(name, _fields_like(base, known, values), f"{kind} has no field")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"{kind}.{name}: expected a list of values, got {describe(values)}.")
        own = aliases.get(name, name)
        if own in checked:
            raise ConfigError(f"{kind}: '{name}' is an alias of '{own}': pass only one of them.")
        _check_types(f"{kind}.{name}", getattr(base, own), values)
        checked[own] = tuple(dict.fromkeys(values))
    return checked


def _fields_like(base: PreTrainedConfig, known: Collection[str], values: object) -> list[str]:
    """Returns the known fields whose value has the type of the given ones; all if none has."""
    kinds = {type(value) for value in values} if isinstance(values, Sequence) else set()
    return [each for each in known if type(getattr(base, each, None)) in kinds] or [*known]


def _check_types(where: str, present: Any, values: Sequence[Any]) -> None:
    if present is None:
        return
    kinds = (int, float) if type(present) is float else (type(present),)
    for value in values:
        if value is not None and type(value) not in kinds:
            raise ConfigError(
                f"{where}: expected {kinds[-1].__name__}, such as {present!r}, got "
                f"{describe(value)}."
            )
        if type(present) is int and type(value) is int and value < 0 < present:
            raise ConfigError(f"{where}: expected 0 or more, such as {present}, got {value}.")


def _uneven_heads(config: PreTrainedConfig) -> str | None:
    """Returns an error for head counts that do not divide the size, which some models accept."""
    size, heads, kv_heads = (
        getattr(config, name, None)
        for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    if not (size and heads):
        return None
    if getattr(config, "head_dim", None) is None and size % heads:
        return f"hidden size {size} is not divisible by {heads} attention heads"
    if kv_heads and heads % kv_heads:
        return f"{heads} attention heads are not divisible by {kv_heads} key-value heads"
    return None


def _falling(values: Sequence[Any]) -> list[Any]:
    """Sorts numbers in descending order; other values stay in order."""
    numbers = all(isinstance(value, int | float) for value in values)
    return sorted(values, reverse=True) if numbers else list(values)


def _moves(start: Shapes | str, shapes: Shapes | str) -> bool:
    """Returns whether some layer has another shape in the second model, or may have."""
    if isinstance(start, str) or isinstance(shapes, str):
        return True
    return any(start.get(path) != shape for path, shape in shapes.items())


def _format(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def usual_fields(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Returns half, equal and double values of the common size fields."""
    sizes = {name: getattr(config, name, None) for name in USUAL_FIELDS}
    return {
        name: tuple(sorted({max(1, size // 2), size, 2 * size}))
        for name, size in sizes.items()
        if isinstance(size, int)
    }
