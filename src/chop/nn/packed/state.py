"""State dicts of packed layers: entries for codes, and checks before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.base.notices import warn_once
from chop.errors import ConfigError
from chop.formats.base import from_key

if TYPE_CHECKING:
    from chop.nn.packed.base import PackedOperator

STATED = "packed"
"""The entry of a layer's metadata: by name of a parameter, the key of its format, its shape."""


class Parameters(dict[str, nn.Parameter | None]):
    """The parameters of a packed layer, from which nothing takes those that it has as codes.

    `torch.nn.utils.weight_norm` and `spectral_norm` take out the parameter that they compute.

    Args:
        found: the parameters.
        layer: the name of the layer's class, for the message.
    Raises:
        ConfigError: `weight` or `bias` is taken, and not there.
    """

    def __init__(self, found: Mapping[str, Any] = MappingProxyType({}), layer: str = "") -> None:
        super().__init__(found)
        self.layer = layer

    def __missing__(self, name: str) -> nn.Parameter | None:
        if name in ("weight", "bias"):
            raise ConfigError(not_a_parameter(self.layer, name))
        raise KeyError(name)

    def __delitem__(self, name: str) -> None:
        self[name]
        super().__delitem__(name)


def not_a_parameter(layer: str, name: str) -> str:
    """Why nothing computes, masks or replaces a parameter that a layer has as codes."""
    return (
        f"{layer}: '{name}' cannot be a parameter, as its values are stored as codes. Unpack the "
        "layer, layer.unpack(), or do it before packing (for pruning, prune_transform_pass)."
    )


def state_formats(layer: PackedOperator, state: Any, prefix: str) -> None:
    """Writes into the metadata of a state dict what the codes of a layer are.

    `torch.save` keeps the metadata; safetensors and plain dicts do not.

    Args:
        layer: the layer.
        state: it has the tensors of the layer.
        prefix: of their names, with the dot.
    """
    metadata = getattr(state, "_metadata", {}).get(prefix[:-1])
    if metadata is not None:
        metadata[STATED] = {
            name: (layer.spec.number_format(name).key, list(shape))
            for name, shape in layer.packed_shapes.items()
        }


def why_not_loadable(
    layer: PackedOperator, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]
) -> list[str]:
    """Why the tensors of a state dict are not the codes of a layer; empty where they may be.

    Warns once where the state dict does not say what its codes are.

    Args:
        layer: the layer that they are for.
        state: by name, the tensors.
        prefix: of the layer's names, with the dot.
        metadata: of the layer.
    """
    reasons = []
    for name, shape in layer.packed_shapes.items():
        where, number_format = f"'{prefix}{name}'", layer.spec.number_format(name)
        has_codes = f"{prefix}{name}_codes" in state
        if f"{prefix}{name}" in state and not has_codes:
            reasons.append(
                f"{where} is stored as codes, and the state dict has its values: assign them, "
                f"layer.{name} = values, which encodes them, or load them before packing."
            )
        stated = metadata.get(STATED, {}).get(name)
        if has_codes and stated is not None:
            key, stated_shape = stated
            if not _is_format(key, number_format) or list(stated_shape) != list(shape):
                reasons.append(
                    f"{where} is stored as codes of {number_format.label} and shape {list(shape)}, "
                    f"and the state dict has those of {_label(key)} and {list(stated_shape)}: pack "
                    "the model in that format to load them."
                )
        elif has_codes:
            warn_once(
                f"the codes of {where} are taken to be {number_format.label} of shape "
                f"{list(shape)}: the state dict does not name their format; torch.save keeps it.",
                about="codes without a format",
            )
    return reasons


def _is_format(key: str, expected: Any) -> bool:
    try:
        return bool(key == expected.key or from_key(key) == expected)
    except ConfigError:
        return False


def _label(key: str) -> str:
    try:
        return from_key(key).label
    except ConfigError:
        return key
