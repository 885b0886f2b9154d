"""Codec of Python values as JSON, without pickle.

Numbers, text, booleans, None, lists and dicts with plain text keys are unchanged. Other values are
objects with one key that starts with `$`: `{"$tuple": [1, 2]}`, `{"$dtype": "float32"}`,
`{"$node": "linear"}`, `{"$function": "torch:add"}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.base.plugins import PluginError
from chop.captured.guards.shape_guards import ShapeGuard
from chop.captured.nodes.node_list import NodeRef
from chop.captured.nodes.targets import function_reference
from chop.captured.specs import FieldsSpec, LeafReport, TensorSpec
from chop.errors import CheckpointError
from chop.formats import OPERANDS, NumberFormat, QuantSpec, parse_format, stored_settings
from chop.ir.metadata import CommonMetadata, MaseMetadata, OpenRecord, Record, TensorInfo
from chop.ir.storage.allowed import AllowList

Json = Any
Rules = Mapping[str, Callable[[Any], Any]]


def _by_tag(*kinds: type) -> dict[str, Any]:
    return {f"${kind.__name__.lower()}": kind for kind in kinds}


SEQUENCES = _by_tag(tuple, torch.Size, set, frozenset)
TORCH_CONSTANTS = _by_tag(torch.dtype, torch.layout, torch.memory_format)
FIELDS = _by_tag(TensorSpec, FieldsSpec, ShapeGuard, LeafReport)
NO_DEFAULT = object()
MAX_RANGE = 2**20
METADATA: Mapping[str, type[Record]] = _by_tag(TensorInfo, CommonMetadata, OpenRecord, MaseMetadata)


class NotPlainError(Exception):
    """Raised for a value without a plain form; the caller adds its location."""


def _function_name(function: Any) -> str:
    """Returns the reference of a function, `Tensor` method or class that a graph calls.

    Raises:
        NotPlainError: if it cannot be imported (a lambda, a partial, a bound method).
    """
    name = getattr(function, "__name__", "")
    if name and getattr(Tensor, name, None) is function:
        return f"torch.Tensor:{name}"
    try:
        return function_reference(function)
    except (ValueError, AttributeError):
        raise NotPlainError(repr(function)) from None


class Encoder:
    """Encoder of values as plain data.

    Args:
        special: class -> function that encodes values such as tensors and configurations.
        functions: True if functions have a plain form.
    """

    def __init__(
        self, special: Mapping[type, Callable[[Any], Json]] | None = None, functions: bool = True
    ) -> None:
        self._special = dict(special or {})
        self._functions = functions

    def __call__(self, value: Any) -> Json:
        """Returns the plain form of a value.

        Raises:
            NotPlainError: if it has none, such as an open file, a lambda or an object of some
                class.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is list:
            return [self(item) for item in value]
        for kind, encode in self._special.items():
            if isinstance(value, kind):
                return encode(value)
        for tag, kind in (*SEQUENCES.items(), *TORCH_CONSTANTS.items(), *FIELDS.items()):
            if type(value) is kind:
                return {tag: self._tagged(tag, value)}
        if isinstance(value, Mapping):
            return self._mapping(value)
        return self._scalar(value)

    def leniently(self, entries: Mapping[str, Any]) -> Json:
        """Encodes the entries that have a plain form; metadata get their own tag."""
        encoded = {}
        for key, value in entries.items():
            try:
                encoded[key] = self._metadata(value)
            except NotPlainError:
                continue
        return encoded

    def _metadata(self, value: Any) -> Json:
        for tag, kind in METADATA.items():
            if type(value) is kind:
                given = self.leniently(_entries_to_keep(value))
                defaults = self.leniently(vars(kind()))
                return {tag: {n: x for n, x in given.items() if x != defaults.get(n, NO_DEFAULT)}}
        return self.leniently(value) if type(value) is dict else self(value)

    def _tagged(self, tag: str, value: Any) -> Json:
        if tag in SEQUENCES:
            has_order = isinstance(value, tuple)
            return [self(item) for item in (value if has_order else sorted(value, key=repr))]
        if tag in FIELDS:
            given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            defaults = {field.name: field.default for field in dataclasses.fields(value)}
            return {name: self(x) for name, x in given.items() if x != defaults[name]}
        return str(value).removeprefix("torch.")

    def _mapping(self, value: Mapping[Any, Any]) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self(item) for key, item in value.items()}
        return {"$dict": [[self(key), self(item)] for key, item in value.items()]}

    def _scalar(self, value: Any) -> Json:
        if isinstance(value, np.generic):
            return self(value.item())
        if isinstance(value, NodeRef):
            return {"$node": value.name}
        if isinstance(value, float):
            # JSON has no infinities; other floats survive as their shortest text.
            return float(value) if value - value == 0 else {"$float": str(float(value))}
        if isinstance(value, int):
            return int(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, slice):
            return {"$slice": [self(part) for part in (value.start, value.stop, value.step)]}
        if isinstance(value, complex):
            return {"$complex": [self(value.real), self(value.imag)]}
        if isinstance(value, range) and len(value[: MAX_RANGE + 1]) <= MAX_RANGE:
            return {"$range": [value.start, value.stop, value.step]}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, NumberFormat):
            return {"$format": _get_settings(value)}
        if isinstance(value, QuantSpec):
            given = {name: x for name, x in value.items() if not x.is_identity}
            formats = {operand: self(x)["$format"] for operand, x in given.items()}
            return {"$spec": {**formats, "gradient": value.gradient}}
        if value is Ellipsis:
            return {"$ellipsis": True}
        if self._functions and callable(value) and not isinstance(value, nn.Module):
            return {"$function": _function_name(value)}
        raise NotPlainError(f"{type(value).__module__}.{type(value).__qualname__}")


def _entries_to_keep(record: Record) -> dict[str, Any]:
    """Returns the entries without example values, which are large and recomputed by a run."""
    is_example = isinstance(record, TensorInfo) and isinstance(record.value, Tensor)
    return {name: x for name, x in vars(record).items() if not (is_example and name == "value")}


class Decoder:
    """Decoder of plain data; functions are resolved by the allowlist.

    Args:
        allowed: the functions that may be named.
        special: tag -> inverse of the encoder's function.
    """

    def __init__(self, allowed: AllowList, special: Rules | None = None) -> None:
        self._rules: dict[str, Callable[[Any], Any]] = {
            "$float": float,
            "$node": NodeRef,
            "$complex": lambda parts: complex(*(self(part) for part in parts)),
            "$slice": lambda parts: slice(*(self(part) for part in parts)),
            "$range": lambda parts: _range(*parts),
            "$dict": lambda items: {self(key): self(item) for key, item in items},
            "$device": torch.device,
            "$format": _format,
            "$spec": _spec,
            "$ellipsis": lambda _: Ellipsis,
            "$function": allowed.function_value,
            "$namespace": lambda items: _namespace(self(items)),
            **(special or {}),
        }

    def __call__(self, plain: Json) -> Any:
        """Returns the value of a plain form.

        Raises:
            CheckpointError: if it is malformed, or names something that is not allowed.
        """
        if isinstance(plain, list):
            return [self(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        if len(plain) != 1 or not next(iter(plain)).startswith("$"):
            return {key: self(item) for key, item in plain.items()}
        ((tag, content),) = plain.items()
        try:
            return self._tagged(tag, content)
        except CheckpointError:
            raise
        except RecursionError:
            raise
        except PluginError as error:
            raise CheckpointError(f"the checkpoint cannot be read: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint has a malformed value {str(plain)[:80]}: {error}"
            ) from None

    def _tagged(self, tag: str, content: Any) -> Any:
        if tag in SEQUENCES:
            return SEQUENCES[tag](self(item) for item in content)
        if tag in TORCH_CONSTANTS:
            return _torch_constant(TORCH_CONSTANTS[tag], content)
        if tag in FIELDS:
            return FIELDS[tag](**{name: self(item) for name, item in content.items()})
        if tag in METADATA:
            record = METADATA[tag]()
            vars(record).update({name: self(item) for name, item in content.items()})
            return record
        if tag not in self._rules:
            raise CheckpointError(f"the checkpoint has a value of the unknown kind '{tag}'.")
        return self._rules[tag](content)


def _get_settings(number_format: NumberFormat) -> Json:
    """Returns the format's name, and its fields that differ from the defaults."""
    settings = stored_settings(number_format)
    defaults = {field.name: field.default for field in dataclasses.fields(number_format)}  # type: ignore[arg-type]
    return {name: x for name, x in settings.items() if name not in defaults or x != defaults[name]}


def _range(start: int, stop: int, step: int) -> range:
    """Returns a range small enough for code that iterates over it."""
    result = range(start, stop, step)
    if len(result[: MAX_RANGE + 1]) > MAX_RANGE:
        raise CheckpointError(f"the checkpoint has a range of more than {MAX_RANGE} numbers.")
    return result


def _namespace(items: Mapping[str, Any]) -> SimpleNamespace:
    for name in items:
        if not name.isidentifier():
            raise CheckpointError(f"the checkpoint has a setting with the invalid name {name!r}.")
    return SimpleNamespace(**items)


def _format(content: Json) -> NumberFormat:
    return parse_format(content)


def _spec(content: Mapping[str, Any]) -> QuantSpec:
    formats = {name: _format(content[name]) for name in OPERANDS if name in content}
    return QuantSpec(**formats, gradient=content["gradient"])


def _torch_constant(kind: type, name: str) -> Any:
    result = getattr(torch, name) if name.isidentifier() else None
    if not isinstance(result, kind):
        raise CheckpointError(f"the checkpoint names '{name}', which is not a {kind.__name__}.")
    return result
