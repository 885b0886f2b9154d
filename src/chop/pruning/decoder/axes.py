"""Axes of a decoder's weights that follow from sizes in its configuration.

A model of the same class with another size shows which axes that size determines. No table of layer
names is needed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError, first_line
from chop.private.transformers_api import get_constructor
from chop.pruning.decoder.depth import DEPTH, WHERE, cut_lists

WIDTH, GROUPS, HIDDEN = "intermediate_size", "num_key_value_heads", "hidden_size"
HEADS = "num_attention_heads"
SIZES = (DEPTH, WIDTH, GROUPS, HIDDEN)
"""Configuration fields of the sizes."""
MIXED = {
    WIDTH: "gate and up in one layer cannot be narrowed",
    GROUPS: "it does not consist of groups",
    HIDDEN: "the sizes of heads depend on it",
}
"""Field -> reason why an axis of another length is no axis of its units."""
Axes = dict[str, dict[int, str]]
"""Tensor name -> axis -> configuration field of its length."""
Units = Mapping[tuple[str, int | None], Tensor]
"""(Field, layer number) -> remaining units, int64. Residual channels have no layer number."""


def resize(config: Any, sizes: Mapping[str, int], layers: Sequence[int] | None = None) -> Any:
    """Returns a configuration with other sizes; the size of a head stays.

    Args:
        config: configuration of the model; it is not changed.
        sizes: size by field. Query heads stay in proportion to key-value heads.
        layers: numbers of the remaining layers. Default: all.
    """
    made = copy.deepcopy(config)
    if layers is not None:
        cut_lists(made, layers)
    if sizes.keys() & {GROUPS, HIDDEN}:
        heads = getattr(config, HEADS)
        made.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        if GROUPS in sizes:
            setattr(made, HEADS, heads // getattr(config, GROUPS) * sizes[GROUPS])
    for field in sizes.keys() - {DEPTH}:
        setattr(made, field, sizes[field])
    return made


def build_empty(model: Any, config: Any) -> Any:
    """Builds a model of the same class on the meta device, without memory for weights.

    Raises:
        ConfigError: the class, or its configuration, does not accept the sizes.
    """
    try:
        # A folder with sizes that its own configuration rejects could not be loaded.
        type(config).from_dict(config.to_dict())
        with torch.device("meta"):
            return get_constructor(type(model))(config)
    except Exception as error:  # of the model's own code
        reason = first_line(error.__cause__ or error).rstrip(".")
        raise ConfigError(
            f"{WHERE}: {type(model).__name__} does not accept these sizes: {reason}."
        ) from None


def find_axes(model: Any, sizes: Mapping[str, int]) -> Axes:
    """Returns the axes that become shorter with smaller sizes.

    Args:
        model: decoder of transformers.
        sizes: size by field, at most the model's.

    Raises:
        ConfigError: a size determines no axis, or one that does not consist of its units.
    """
    axes: Axes = {}
    whole = model.state_dict()
    for field in (WIDTH, GROUPS, HIDDEN):
        present = getattr(model.config, field, None)
        if sizes.get(field, present) == present:
            continue
        small = build_empty(model, resize(model.config, {field: sizes[field]})).state_dict()
        changed = [
            (name, axis)
            for name, tensor in whole.items()
            for axis, length in enumerate(tensor.shape)
            if small[name].shape[axis] != length
        ]
        for name, axis in changed:
            length = whole[name].shape[axis]
            if length % present or (field != GROUPS and length != present):
                reason = f"'{name}' has {length} outputs or inputs, not {present}: {MIXED[field]}"
                raise _refusal(model, field, reason)
            if field == GROUPS and whole[name].dim() == 1 and name.endswith(".weight"):
                raise _refusal(model, field, f"'{name}' is a norm over all heads")
            axes.setdefault(name, {})[axis] = field
        if not changed:
            raise _refusal(model, field, "no weight depends on it")
    return axes


def _refusal(model: Any, field: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{WHERE}: {field} of {type(model).__name__} cannot be reduced, because {reason}; leave "
        f"{field} out."
    )


def layer_number(path: str, layers: str) -> int | None:
    """Returns the number of the layer that the module or tensor at a path belongs to, or None.

    >>> layer_number("model.layers.12.mlp", "model.layers"), layer_number("lm_head", "model.layers")
    (12, None)
    """
    match = re.match(rf"{re.escape(layers)}\.(\d+)\.", path)
    return None if match is None else int(match[1])


def slice_state(
    state: Mapping[str, Tensor], axes: Axes, units: Units, counts: Mapping[str, int], layers: str
) -> dict[str, Tensor]:
    """Returns a state dict with only the remaining units.

    Args:
        state: state dict of the model.
        axes: axes to shorten, see `find_axes`.
        units: remaining units; tensors without an entry, of removed layers, stay whole.
        counts: number of units by field in the model; the entries of a unit are adjacent.
        layers: path of the list of layers.
    """
    made = dict(state)
    for name, fields in axes.items():
        for axis, field in fields.items():
            remaining = units.get((field, None if field == HIDDEN else layer_number(name, layers)))
            if remaining is not None:
                split = made[name].unflatten(axis, (counts[field], -1))
                chosen = split.index_select(axis, remaining.to(split.device))
                made[name] = chosen.flatten(axis, axis + 1)
    return made
