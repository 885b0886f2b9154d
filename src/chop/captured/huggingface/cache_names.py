"""Names of the key-value cache: transformers renamed the argument and the output that holds it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from chop.errors import GuardError

CACHE_NAMES = ("cache", "past_key_values")
"""What `forward` and its output call the cache: since transformers 5.24, and before. A class of a
user's own has either name with either version, and so has a checkpoint."""
POSITIONS = "position_ids"
OPTIONAL = (POSITIONS, *CACHE_NAMES)
OPTIONAL_INPUTS = ((), *((x,) for x in CACHE_NAMES), *((POSITIONS, x) for x in CACHE_NAMES))
"""Which inputs of a graph may be left out together."""


def cache_among(names: Collection[str]) -> str | None:
    """The name of a cache among names; None where there is none."""
    return next((name for name in CACHE_NAMES if name in names), None)


def cache_name(model: nn.Module) -> str:
    """What `forward` of a model calls its cache; the newer name where it takes none."""
    return cache_among(inspect.signature(model.forward).parameters) or CACHE_NAMES[0]


def find_cache(values: Mapping[str, Any]) -> tuple[str, Any]:
    """The cache among arguments or outputs, with its name; None where there is none."""
    # An output of transformers warns where it is asked for the older name, which comes second.
    found = (name for name in CACHE_NAMES if values.get(name) is not None)
    name = next(found, CACHE_NAMES[0])
    return name, values.get(name)


def asks_for_cache(model: nn.Module, names: Collection[str]) -> bool:
    """Whether names of inputs ask for a graph with a cache."""
    module = sys.modules.get("transformers.modeling_utils")
    of_transformers = module is not None and isinstance(model, module.PreTrainedModel)
    # Other models may call anything `cache`.
    return not {*names}.isdisjoint(CACHE_NAMES if of_transformers else CACHE_NAMES[1:])


def plain_names(names: Sequence[str] | None) -> list[str] | None:
    """The inputs that examples are made for: a cache comes from the model."""
    return None if names is None else [name for name in names if name not in OPTIONAL]


def with_taken_name(given: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Arguments with the cache under the one of its names that is taken.

    Args:
        given: by name.
        taken: names that need no change.

    Raises:
        GuardError: it came under both names.

    >>> with_taken_name({"input_ids": 0, "cache": 1}, ["input_ids", "past_key_values"])
    {'input_ids': 0, 'past_key_values': 1}
    """
    other = cache_among([name for name in given if name not in taken])
    own = cache_among(taken)
    if other is None or own is None:
        return dict(given)
    renamed = {name: value for name, value in given.items() if name != other}
    if given[other] is not None:
        if renamed.get(own) is not None:
            raise GuardError(f"expected one cache, got {own} and {other}; leave {other} out")
        renamed[own] = given[other]
    return renamed


def settled_name(key: Any) -> Any:
    """A key of arguments, the cache under the name that files had first."""
    return CACHE_NAMES[-1] if key in CACHE_NAMES else key


def as_fields(target: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a function; of an output class, the cache as the installed version calls it."""
    fields = getattr(target, "__dataclass_fields__", None)
    return dict(kwargs) if fields is None else with_taken_name(kwargs, fields)
