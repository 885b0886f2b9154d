"""Operators bound to one format: `LinearInteger`, `Conv2dMXInt` ... None of them is written out.

A module of `chop.nn.quantized.modules` calls `bind` once per operator and has, from then on, a
class of its own for every format. They are ordinary classes with a home: pickle, deep copies and
checkpoints find them by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from chop.config import without_na
from chop.errors import ConfigError
from chop.formats import (
    OPERANDS,
    Float,
    Integer,
    NumberFormat,
    QuantSpec,
    formats,
    get_format,
)
from chop.formats.binary import Binary
from chop.formats.binary_residual import BinaryResidual
from chop.formats.mase_spelling import own_keys
from chop.nn.quantized.base import QuantizedOperator

# What MASE calls otherwise than by the name of a format, and what is preset.
VARIANTS: dict[str, tuple[type[NumberFormat], dict[str, Any]]] = {
    "IntegerFloor": (Integer, {"floor": True}),
    "BinaryScaling": (Binary, {"binary_training": True}),
    "BinaryResidualSign": (BinaryResidual, {}),
}
# What MASE's layers of these names leave float, or do not read, whatever their configs say.
UNREAD: dict[str, tuple[str, ...]] = {
    "LinearBinary": ("data_in", "bias", "binary_training"),
    "LinearBinaryResidualSign": ("bias",),
    "LinearTernary": ("data_in", "bias"),
}


class BoundOperator(QuantizedOperator):
    """Mixin of an operator whose flat config is of one format; `name` may be left out.

    One config with the keys of every format serves all the classes: what is of other formats is
    passed over, with one warning for all the layers of a class. A key that no format has is an
    error.

    Args:
        args: what the `torch.nn` class takes, and `config` after it: as `QuantSpec.parse` reads
            it. None gives every operand the format's defaults, where it has them.
        kwargs: the same by name.

    Raises:
        ConfigError: the config names another format, or lacks keys that the format needs.
    """

    format: ClassVar[type[NumberFormat]]
    preset: ClassVar[Mapping[str, Any]]
    """Config keys that the class decides."""
    unbound: ClassVar[type[QuantizedOperator]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(type(self)).bind(*args, **kwargs).arguments
        super().__init__(**{**given, "config": self._complete(given.get("config"))})

    @classmethod
    def _complete(
        cls, config: QuantSpec | Mapping[str, Any] | None
    ) -> QuantSpec | Mapping[str, Any]:
        if config is not None and not isinstance(config, Mapping):
            return config
        config = without_na(dict(config or {}))
        name = config.get("name")
        if name is not None and get_format(name) is not cls.format:
            raise ConfigError(
                f"{cls.__name__}: expected a config of format '{cls.format.name}', got one of "
                f"'{name}'; use {cls.unbound.__name__}, which takes any."
            )
        unread = UNREAD.get(cls.__name__, ())
        floats = {name: config.get(name) for name in unread if name in OPERANDS}
        own = own_keys(cls.format, config, cls.__name__, unread)
        return {**own, **floats, "name": cls.format.name, **cls.preset}

    def with_spec(self, spec: QuantSpec) -> QuantizedOperator:  # type: ignore[override]
        """The same operator in other formats, which it is then no longer bound to."""
        return self.unbound.from_float(self, spec)


def bind(operator: type[QuantizedOperator], namespace: dict[str, Any]) -> None:
    """Defines a class per format in the namespace of a module: the operator bound to it.

    Those of formats that are defined later are made when they are asked for.

    Args:
        operator: `QuantLinear`, whose classes are called `Linear...`.
        namespace: `globals()` of the module.
    """
    prefix = operator.__name__.removeprefix("Quant")

    def later(name: str) -> type[BoundOperator]:
        """The class of a format that was defined after this module."""
        for kind in formats():
            if name == prefix + kind.__name__ and kind is not Float:
                return _define(operator, namespace, name, kind, {})
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")

    for kind in formats():
        if kind is not Float:
            _define(operator, namespace, prefix + kind.__name__, kind, {})
    for suffix, (kind, preset) in VARIANTS.items():
        _define(operator, namespace, prefix + suffix, kind, preset)
    namespace["__getattr__"] = later


def _define(
    operator: type[QuantizedOperator],
    namespace: dict[str, Any],
    name: str,
    kind: type[NumberFormat],
    preset: Mapping[str, Any],
) -> type[BoundOperator]:
    prefix = operator.__name__.removeprefix("Quant")
    body = {
        "__module__": namespace["__name__"],
        "__qualname__": name,
        "__doc__": (
            f"`nn.{prefix}` in format `{kind.name}`: see `{operator.__name__}` for its tensors."
        ),
        "__signature__": _with_config(operator),
        "format": kind,
        "preset": preset,
        "unbound": operator,
    }
    namespace[name] = type(name, (BoundOperator, operator), body)
    return namespace[name]


@cache
def _with_config(operator: type[QuantizedOperator]) -> inspect.Signature:
    """The signature of the `torch.nn` class that an operator replaces, then `config`."""
    ancestor = next(cls for cls in operator.__mro__ if cls.__module__.startswith("torch.nn"))
    signature = inspect.signature(ancestor)
    config = inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    # Those of a class without arguments are the `*args, **kwargs` of `nn.Module`.
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in signature.parameters.values() if p.kind not in variable] + [config]
    return signature.replace(parameters=sorted(parameters, key=lambda p: p.kind))
