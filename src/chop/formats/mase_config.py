"""Parsing of MASE's flat format configs, where they are looser than the formats are.

Exact conversions are silent: "NA" is None, 4.0 is 4, 1 is True. What changes a setting is
reported by one `AdjustedWarning` for all the layers that have it.
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
"""Keys of a layer's config that have no effect here."""
NOT_BUILT = {
    "lutnet": "no lookup-table networks are built yet; 'binary_residual' has their inputs' format.",
    "logicnets": "no LogicNets are built yet; 'integer' has their formats.",
    "mxint_hardware": "no format for circuits alone yet; chop emit makes those of 'mxint'.",
}
LAYER_KEYS = ("floor", "binary_training", "additional_layers_inputs", "additional_layers_outputs")
"""Keys of some layer of MASE's that have no operand before them."""
FOREIGN_FIELDS = ("binarization_level", "input_expanded", "k", "dim", "in_dim", "parallelism")
"""Fields of MASE's formats that no format here has."""
MAX_NAMES = 4


def read_config(settings: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The config of a layer without MASE's own forms of None, of names and of options.

    Raises:
        NotBuiltError: it names a format of MASE's that there is not.
    """
    config = ignoring(without_na(dict(settings)), IGNORED, where)
    name = config.get("name")
    if name == "integer_floor":
        return {**config, "name": "integer", "floor": True}
    if isinstance(name, str) and name in NOT_BUILT:
        raise NotBuiltError(f"{where}: '{name}': {NOT_BUILT[name]}")
    return config


def read_fields(kind: type[NumberFormat], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a format, each as the type that the format has, and as near as it can be."""
    hints = _hints(kind)
    given = {name: _exact(value, hints[name]) for name, value in fields.items()}
    taken = kind.nearest_valid(given)
    for name, value in given.items():
        if name not in taken:
            warn_once(f"{kind.name}: {name}={value!r} is ignored, as in MASE.")
        elif taken[name] != value:
            warn_once(f"{kind.name}: {name}={value!r} is taken as {taken[name]!r}, the nearest.")
    return taken


def without_spare_keys(kind: type[NumberFormat], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings without the keys that MASE gives the format though they say nothing of it."""
    spare = [key for key, value in settings.items() if _is_spare(kind, key, value)]
    if spare:
        warn_once(f"{kind.name} has no {', '.join(sorted(spare))}: ignored, as in MASE.")
    return {key: value for key, value in settings.items() if key not in spare}


def own_keys(
    kind: type[NumberFormat], config: Mapping[str, Any], owner: str, unread: Collection[str] = ()
) -> dict[str, Any]:
    """A config that MASE's users share among formats, without what is not of this one.

    Args:
        kind: the format.
        config: operands and fields in the flat form; keys that no format has stay.
        owner: the class whose config it is, for the message.
        unread: operands whose flat keys the owner does not read, and other such keys; a format
            that is given whole for an operand stays.
    """
    own = _flat_keys(kind) | kind.module_keys.keys()
    of_others = frozenset().union(
        *map(_flat_keys, formats()), LAYER_KEYS, _prefixed(FOREIGN_FIELDS)
    )
    passed_over = [
        key
        for key in config
        if key not in OPERANDS
        and ((key in of_others and key not in own) or {key, _operand(key)}.intersection(unread))
    ]
    if passed_over:
        names = enumerate_names(sorted(passed_over), MAX_NAMES)
        warn_once(f"{owner} does not read {names} of its config, as in MASE.")
    return {key: value for key, value in config.items() if key not in passed_over}


def _is_spare(kind: type[NumberFormat], key: str, value: Any) -> bool:
    field = key.removeprefix(f"{_operand(key)}_")
    return value is not None and kind.ignores(field, value)


def _operand(key: str) -> str:
    """The operand that a key of the flat form starts with; "" for a field of all."""
    return next((name for name in OPERANDS if key.startswith(f"{name}_")), "")


@cache
def _flat_keys(kind: type[NumberFormat]) -> frozenset[str]:
    """The format's fields, alone and after each operand."""
    return _prefixed(_hints(kind).keys())


def _prefixed(fields: Collection[str]) -> frozenset[str]:
    return frozenset(fields) | {f"{operand}_{name}" for operand in OPERANDS for name in fields}


@cache
def _hints(kind: type[NumberFormat]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def _exact(value: Any, hint: Any) -> Any:
    """The value as an int or a bool where the hint wants one and it equals one."""
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
