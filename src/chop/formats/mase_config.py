"""Parser for MASE's flat format configs, which are less strict than the formats.

Exact conversions are silent: "NA" is None, 4.0 is 4, 1 is True. One `AdjustedWarning` lists the
changed settings of all layers.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from chop.base.notices import warn_once
from chop.config import convert, ignoring, without_na
from chop.errors import ConfigError, NotBuiltError, enumerate_names
from chop.formats.base import OPERANDS, NumberFormat, formats

IGNORED = ("cache_quantized_weight", "noparse")
"""Keys of a layer's config without effect in chop."""
NOT_BUILT = {
    "lutnet": "lookup-table networks are not supported; 'binary_residual' is their input format.",
    "logicnets": "LogicNets are not supported; 'integer' is the format that they use.",
    "mxint_hardware": "formats for circuits only are not supported; chop emit supports 'mxint'.",
}
LAYER_KEYS = ("floor", "binary_training", "additional_layers_inputs", "additional_layers_outputs")
"""Layer keys of MASE that have no operand prefix."""
FOREIGN_FIELDS = ("binarization_level", "input_expanded", "k", "dim", "in_dim", "parallelism")
"""Fields of MASE's formats that chop's formats do not have."""
MAX_NAMES = 4


def read_config(settings: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Converts MASE's spellings of None, names and options in a layer's config.

    Raises:
        NotBuiltError: if it names a format of MASE that chop lacks.
    """
    config = ignoring(without_na(dict(settings)), IGNORED, where)
    name = config.get("name")
    if name == "integer_floor":
        return {**config, "name": "integer", "floor": True}
    if isinstance(name, str) and name in NOT_BUILT:
        raise NotBuiltError(f"{where}: '{name}': {NOT_BUILT[name]}")
    return config


def read_fields(kind: type[NumberFormat], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the fields to the types of a format, and to the nearest valid values."""
    hints = _hints(kind)
    given = {name: _exact(value, hints[name]) for name, value in fields.items()}
    taken = kind.nearest_valid(given)
    for name, value in given.items():
        if name not in taken:
            warn_once(f"{kind.name}: {name}={value!r} is ignored, as in MASE.")
        elif taken[name] != value:
            warn_once(
                f"{kind.name}: {name}={value!r} is changed to {taken[name]!r}, the nearest valid."
            )
    return taken


def without_spare_keys(kind: type[NumberFormat], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Removes keys that MASE accepts but that have no meaning for the format."""
    spare = [key for key, value in settings.items() if _is_spare(kind, key, value)]
    if spare:
        warn_once(f"{kind.name} has no {', '.join(sorted(spare))}: ignored, as in MASE.")
    return {key: value for key, value in settings.items() if key not in spare}


def own_keys(
    kind: type[NumberFormat], config: Mapping[str, Any], owner: str, unread: Collection[str] = ()
) -> dict[str, Any]:
    """Removes keys of other formats from a config that MASE users share among formats.

    Args:
        kind: format class.
        config: operands and fields in the flat form; keys that no format has are preserved.
        owner: class that the config belongs to, for the message.
        unread: operands whose flat keys the owner does not read, and other such keys. Complete
            formats for an operand are preserved.
    """
    own = _flat_keys(kind) | kind.module_keys.keys()
    foreign = frozenset().union(*map(_flat_keys, formats()), LAYER_KEYS, _prefixed(FOREIGN_FIELDS))
    unused = [
        key
        for key in config
        if key not in OPERANDS
        and ((key in foreign and key not in own) or {key, _operand(key)}.intersection(unread))
    ]
    if unused:
        names = enumerate_names(sorted(unused), MAX_NAMES)
        warn_once(f"{owner} does not read {names} of its config, as in MASE.")
    return {key: value for key, value in config.items() if key not in unused}


def _is_spare(kind: type[NumberFormat], key: str, value: Any) -> bool:
    field = key.removeprefix(f"{_operand(key)}_")
    return value is not None and kind.ignores(field, value)


def _operand(key: str) -> str:
    """Returns the operand prefix of a flat key; "" for a field of all operands."""
    return next((name for name in OPERANDS if key.startswith(f"{name}_")), "")


@cache
def _flat_keys(kind: type[NumberFormat]) -> frozenset[str]:
    """Returns the format's fields, without a prefix and with that of each operand."""
    return _prefixed(_hints(kind).keys())


def _prefixed(fields: Collection[str]) -> frozenset[str]:
    return frozenset(fields) | {f"{operand}_{name}" for operand in OPERANDS for name in fields}


@cache
def _hints(kind: type[NumberFormat]) -> dict[str, Any]:
    if not dataclasses.is_dataclass(kind):  # a class that `get_format` refuses
        return {}
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _exact(value: Any, hint: Any) -> Any:
    """Converts a value to int or bool if the type hint requires one and the values are equal."""
    candidates = [value]
    if isinstance(value, list | tuple):
        candidates.append([_exact(item, int) for item in value])
    if isinstance(value, float) and value.is_integer():
        candidates.append(int(value))
    if isinstance(value, int | float) and value in (0, 1):
        candidates.append(bool(value))
    for candidate in candidates:
        try:
            return convert(candidate, hint, "")
        except ConfigError:
            continue
    return value
