"""Operators bound to one format: `LinearInteger`, `Conv2dMXInt` ..., generated on import.

Every module of `chop.nn.quantized.modules` is created on its first import and has a class for every
format. Pickle, deep copies and checkpoints find these classes by name.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

from chop.base.elsewhere import explain_missing
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
from chop.formats.mase_config import own_keys
from chop.nn.quantized import ops
from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.bases import BASES
from chop.paths.virtual import add_modules

# MASE's names that differ from format names, and their preset settings.
VARIANTS: dict[str, tuple[type[NumberFormat], dict[str, Any]]] = {
    "IntegerFloor": (Integer, {"floor": True}),
    "BinaryScaling": (Binary, {"binary_training": True}),
    "BinaryResidualSign": (BinaryResidual, {}),
}
# Operands that MASE's layers leave float, or do not read, regardless of their configs.
UNREAD: dict[str, tuple[str, ...]] = {
    "LinearBinary": ("data_in", "bias", "binary_training"),
    "LinearBinaryResidualSign": ("bias",),
    "LinearTernary": ("data_in", "bias"),
}


class _BoundClass(type):
    """Metaclass that makes quantized operators instances of the bound classes."""

    def __instancecheck__(cls, instance: Any) -> bool:
        """Returns True also for an operator of another class with operands in this format."""
        if super().__instancecheck__(instance):
            return True
        own = vars(cls)
        if "unbound" not in own or not isinstance(instance, own["unbound"]):
            return False
        spec = getattr(instance, "spec", None)  # None before `__init__`
        chosen = [] if spec is None else [x for _, x in spec.items() if not x.is_identity]
        kind, preset = own["format"], own["preset"]
        wanted = {kind.module_keys.get(key, key): value for key, value in preset.items()}
        return bool(chosen) and all(
            type(x) is kind and all(getattr(x, n) == v for n, v in wanted.items() if n)
            for x in chosen
        )


class BoundOperator(QuantizedOperator, metaclass=_BoundClass):
    """Mixin of an operator with a flat config of one format; `name` is optional.

    `isinstance` is also true for operators from passes: a `QuantLinear` in integers is an instance
    of `LinearInteger`.

    One config with the keys of several formats can serve all classes: keys of other formats are
    ignored, with one warning for all layers of a class. A key that no format has is an error.

    Args:
        args: arguments of the `torch.nn` class, followed by `config` as `QuantSpec.parse` reads it.
            None gives every operand the format's defaults, if it has any.
        kwargs: keyword arguments.

    Raises:
        ConfigError: if the config names another format, or lacks keys that the format needs.
    """

    format: ClassVar[type[NumberFormat]]
    preset: ClassVar[Mapping[str, Any]]
    """Config keys fixed by the class."""
    unbound: ClassVar[type[QuantizedOperator]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            given = inspect.signature(type(self)).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ConfigError(
                f"{type(self).__name__}: {error}; pass the arguments of the layer, then config=."
            ) from None
        super().__init__(**{**given, "config": self._complete(given.get("config"))})

    @classmethod
    def _complete(
        cls, config: QuantSpec | Mapping[str, Any] | None
    ) -> QuantSpec | Mapping[str, Any]:
        if config is not None and not isinstance(config, Mapping):
            return config
        settings: dict[str, Any] = without_na(dict(config or {}))
        name = settings.get("name")
        if name is not None and get_format(name) is not cls.format:
            raise ConfigError(
                f"{cls.__name__}: expected a config of format '{cls.format.name}', got one of "
                f"'{name}'; use {cls.unbound.__name__}, which takes any format."
            )
        unread = UNREAD.get(cls.__name__, ())
        floats = {name: settings.get(name) for name in unread if name in OPERANDS}
        own = own_keys(cls.format, settings, cls.__name__, unread)
        return {**own, **floats, "name": cls.format.name, **cls.preset}

    def with_spec(self, spec: QuantSpec) -> QuantizedOperator:  # type: ignore[override]
        """Returns the operator in other formats, as an unbound class."""
        return self.unbound.from_float(self, spec)


MODULES: dict[str, tuple[type[QuantizedOperator], ...]] = {
    "batch_norm1d": (ops.QuantBatchNorm1d,),
    "batch_norm2d": (ops.QuantBatchNorm2d,),
    "conv1d": (ops.QuantConv1d,),
    "conv2d": (ops.QuantConv2d,),
    "convtranspose2d": (ops.QuantConvTranspose2d,),
    "embedding": (ops.QuantEmbedding,),
    "gelu": (ops.QuantGELU,),
    "group_norm": (ops.QuantGroupNorm,),
    "layer_norm": (ops.QuantLayerNorm,),
    "linear": (ops.QuantLinear,),
    "pool1d": (ops.QuantAdaptiveAvgPool1d, ops.QuantAvgPool1d, ops.QuantMaxPool1d),
    "pool2d": (ops.QuantAdaptiveAvgPool2d, ops.QuantAvgPool2d, ops.QuantMaxPool2d),
    "relu": (ops.QuantReLU,),
    "rms_norm": (ops.QuantRMSNorm,),
    "selu": (ops.QuantSELU,),
    "sigmoid": (ops.QuantSigmoid,),
    "silu": (ops.QuantSiLU,),
    "softmax": (ops.QuantLogSoftmax, ops.QuantSoftmax),
    "softplus": (ops.QuantSoftplus,),
    "softsign": (ops.QuantSoftsign,),
    "tanh": (ops.QuantTanh,),
}
"""Modules of `chop.nn.quantized.modules`, and the operators with bound classes in each."""
PACKAGE = "chop.nn.quantized.modules"


def _find_class(name: str) -> Any:
    """Returns the bound class of that name, or the module of an operator.

    Raises:
        AttributeError: if there is none.
    """
    if name in MODULES:
        return importlib.import_module(f"{PACKAGE}.{name}")
    if name in BASES:
        return BASES[name]
    for home, operators in MODULES.items():
        if any(name.startswith(_prefix(operator)) for operator in operators):
            bound = getattr(importlib.import_module(f"{PACKAGE}.{home}"), name, None)
            if bound is not None:
                return bound
    raise AttributeError(explain_missing(f"{PACKAGE}.{name}"))


def _bind(module: ModuleType) -> None:
    """Defines a class per operator and format in a module.

    Classes of formats that are defined later are created on access.
    """
    operators = MODULES[module.__name__.rpartition(".")[2]]

    def later(name: str) -> type:
        """Returns the class of a format defined later, or MASE's base class of layers."""
        if name in BASES and BASES[name].twin in operators:
            return BASES[name]
        for operator, kind in itertools.product(operators, formats()):
            if name == _prefix(operator) + kind.__name__ and kind is not Float:
                return _define(operator, module, name, kind, {})
        raise AttributeError(explain_missing(f"{module.__name__}.{name}"))

    for operator in operators:
        for kind in formats():
            if kind is not Float:
                _define(operator, module, _prefix(operator) + kind.__name__, kind, {})
        for suffix, (kind, preset) in VARIANTS.items():
            _define(operator, module, _prefix(operator) + suffix, kind, preset)
    vars(module)["__getattr__"] = later


def _prefix(operator: type[QuantizedOperator]) -> str:
    return operator.__name__.removeprefix("Quant")


def _define(
    operator: type[QuantizedOperator],
    module: ModuleType,
    name: str,
    kind: type[NumberFormat],
    preset: Mapping[str, Any],
) -> type[BoundOperator]:
    body = {
        "__module__": module.__name__,
        "__qualname__": name,
        "__doc__": (
            f"`nn.{_prefix(operator)}` in format `{kind.name}`: see `{operator.__name__}` for its "
            "tensors."
        ),
        "__signature__": _with_config(operator),  # type: ignore[arg-type]
        "format": kind,
        "preset": preset,
        "unbound": operator,
    }
    vars(module)[name] = bound = type(name, (BoundOperator, operator), body)
    return bound


@cache
def _with_config(operator: type[QuantizedOperator]) -> inspect.Signature:
    """Returns the signature of the replaced `torch.nn` class, followed by `config`."""
    ancestor = next(cls for cls in operator.__mro__ if cls.__module__.startswith("torch.nn"))
    signature = inspect.signature(ancestor)
    config = inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    # A class without arguments has the `*args, **kwargs` of `nn.Module`.
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in signature.parameters.values() if p.kind not in variable] + [config]
    return signature.replace(parameters=sorted(parameters, key=lambda p: p.kind))


def _fill_package(module: ModuleType) -> None:
    """Defines the package's names; accessing a class imports its module."""
    module.__doc__ = "Operators bound to formats, one module for each operator."
    bound = {
        _prefix(operator) + kind.__name__
        for operators in MODULES.values()
        for operator, kind in itertools.product(operators, formats())
    }
    vars(module).update(
        __all__=list(MODULES), __getattr__=_find_class, __dir__=lambda: [*MODULES, *BASES, *bound]
    )


add_modules([PACKAGE], _fill_package)
add_modules({f"{PACKAGE}.{name}" for name in MODULES}, _bind)
