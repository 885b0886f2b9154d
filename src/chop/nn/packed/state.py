"""State dicts of packed layers: entries for codes, and checks before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chop.errors import ConfigError
from chop.formats.base import from_key
from chop.notices import warn_once

if TYPE_CHECKING:
    from chop.nn.packed.base import PackedOperator

STATED = "packed"
"""The entry of a layer's metadata: by name of a parameter, the key of its format, its shape."""


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
