"""Names of the key-value cache, an argument and output that `transformers` renamed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from chop.errors import GuardError

CACHE_NAMES = ("cache", "past_key_values")
"""Names of the cache in `forward` and its output: since transformers 5.24, and before. Custom
classes and checkpoints have either name with either version.
"""
POSITIONS = "position_ids"
OPTIONAL = (POSITIONS, *CACHE_NAMES)
OPTIONAL_INPUTS = ((), *((x,) for x in CACHE_NAMES), *((POSITIONS, x) for x in CACHE_NAMES))
"""Sets of inputs that may be omitted together."""


def find_cache_name(names: Collection[str]) -> str | None:
    """Returns the name of a cache among `names`; None if there is none."""
    return next((name for name in CACHE_NAMES if name in names), None)


def cache_name(model: nn.Module) -> str:
    """Returns a model's argument name for its cache; the newer name if it takes none."""
    return find_cache_name(inspect.signature(model.forward).parameters) or CACHE_NAMES[0]


def find_cache(values: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the cache among arguments or outputs, with its name; None if there is none."""
    # Outputs of transformers warn about reads of the older name, so the newer one comes first.
    present = (name for name in CACHE_NAMES if values.get(name) is not None)
    name = next(present, CACHE_NAMES[0])
    return name, values.get(name)


def requests_cache(model: nn.Module, names: Collection[str]) -> bool:
    """Returns whether the input names request a graph with a cache."""
    module = sys.modules.get("transformers.modeling_utils")
    is_transformers = module is not None and isinstance(model, module.PreTrainedModel)
    # Other models may use the name `cache` for anything.
    return not {*names}.isdisjoint(CACHE_NAMES if is_transformers else CACHE_NAMES[1:])


def names_without_cache(names: Sequence[str] | None) -> list[str] | None:
    """Returns the input names without the cache, which the model creates."""
    return None if names is None else [name for name in names if name not in OPTIONAL]


def rename_cache(given: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Renames the cache among arguments to the accepted one of its names.

    Args:
        given: arguments by name.
        taken: accepted names.

    Raises:
        GuardError: both names of the cache are present.

    >>> rename_cache({"input_ids": 0, "cache": 1}, ["input_ids", "past_key_values"])
    {'input_ids': 0, 'past_key_values': 1}
    """
    other = find_cache_name([name for name in given if name not in taken])
    own = find_cache_name(taken)
    if other is None or own is None:
        return dict(given)
    renamed = {name: value for name, value in given.items() if name != other}
    if given[other] is not None:
        if renamed.get(own) is not None:
            raise GuardError(f"expected one cache, got {own} and {other}; omit {other}")
        renamed[own] = given[other]
    return renamed


def saved_cache_name(key: Any) -> Any:
    """Returns a key of arguments, with the cache under its older name, which files have."""
    return CACHE_NAMES[-1] if key in CACHE_NAMES else key


def rename_cache_field(target: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Renames the cache in arguments of an output class to its name in the installed version."""
    fields = getattr(target, "__dataclass_fields__", None)
    return dict(kwargs) if fields is None else rename_cache(kwargs, fields)
