"""State of packed layers: parameters as codes in buffers, and their entries in state dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chop.base.notices import warn_once
from chop.errors import ConfigError
from chop.formats import Encoded
from chop.formats.parsing import from_key
from chop.nn.quantized import QuantizedOperator

CODES, SCALES, TENSOR_SCALE = "codes", "scales", "tensor_scale"
BUFFER_NAMES = {
    operand: (f"{operand}_{CODES}", f"{operand}_{SCALES}", f"{operand}_{TENSOR_SCALE}")
    for operand in ("weight", "bias")
}
"""The buffers of a packed parameter."""
STATED = "packed"
"""Metadata entry of a layer: format key and shape by name of a parameter."""


class Parameters(dict[str, nn.Parameter | None]):
    """Parameters of a packed layer, of which those stored as codes cannot be removed.

    `torch.nn.utils.weight_norm` and `spectral_norm` remove the parameter that they compute.

    Args:
        parameters: the parameters.
        layer: name of the layer's class, for the message.
    Raises:
        ConfigError: if `weight` or `bias` is removed, and not there.
    """

    def __init__(
        self, parameters: Mapping[str, Any] = MappingProxyType({}), layer: str = ""
    ) -> None:
        super().__init__(parameters)
        self.layer = layer

    def __missing__(self, name: str) -> nn.Parameter | None:
        if name in ("weight", "bias"):
            raise ConfigError(not_a_parameter(self.layer, name))
        raise KeyError(name)

    def __delitem__(self, name: str) -> None:
        self[name]
        super().__delitem__(name)


def not_a_parameter(layer: str, name: str) -> str:
    """Explains why a parameter that is stored as codes cannot be computed, masked or replaced."""
    return (
        f"{layer}: '{name}' cannot be a parameter, since its values are stored as codes. Unpack "
        "the layer, layer.unpack(), or change it before packing (prune_transform_pass)."
    )


class PackedState(QuantizedOperator):
    """Mixin with the codes of an operator's parameters, and their serialization.

    Attributes:
        packed_shapes: shapes of the parameters that are codes, by name.
        packed_dtype: dtype of decoded values.
        packed_trainable: parameters that require a gradient after `unpack`.
        packed_mask: zeros of the weight stay zero.
        packed_exact: products with the weight are bit-identical to those of the decoded weight.
    """

    exact_buffers = (*QuantizedOperator.exact_buffers, SCALES, TENSOR_SCALE)
    takes_rows: ClassVar[bool] = False
    """True if a weight with another number of rows may be written."""
    packed_shapes: dict[str, torch.Size]
    packed_dtype: torch.dtype
    packed_trainable: tuple[str, ...]
    packed_mask: bool
    packed_exact: bool = False

    def put_codes(self, name: str, stored: Encoded, in_place: bool = True) -> None:
        """Replaces the codes of a parameter.

        Args:
            name: name of the parameter.
            stored: the codes.
            in_place: write to the memory of the old codes, if they have that size, so that layers
                that share them see the change. False: use the tensors of `stored` and share them.
        """
        parts = (stored.codes, stored.scales, stored.tensor_scale)
        for buffer, new in zip(BUFFER_NAMES[name], parts, strict=True):
            old = self._buffers.get(buffer)
            if not in_place or old is None or new is None or old.shape != new.shape:
                self._buffers[buffer] = new
                continue
            with torch.inference_mode(old.is_inference()), torch.no_grad():
                old.copy_(new)
        self.packed_shapes = {**self.packed_shapes, name: stored.shape}

    def encoded(self, name: str) -> Encoded:
        """Returns the codes of a packed parameter."""
        codes, *scales = (self._buffers.get(buffer) for buffer in BUFFER_NAMES[name])
        assert codes is not None
        return Encoded(codes, self.packed_shapes[name], self.packed_dtype, *scales)

    def passed_shape(self, name: str, stored: Encoded | None = None) -> list[int]:
        """Returns the shape of a packed parameter as operators read it.

        Codes that are a tensor subclass, such as a DTensor, may contain only some rows after
        unwrapping. The number of rows is then -1, if the codes determine it.

        Args:
            name: name of the parameter.
            stored: some of its rows. Default: all.
        """
        shape = self.packed_shapes[name] if stored is None else stored.shape
        codes = self._buffers[BUFFER_NAMES[name][0]] if stored is None else stored.codes
        if type(codes) is not Tensor and self.spec.number_format(name).is_row_separable(shape):
            return [-1, *shape[1:]]
        return list(shape)

    def packed_bits(self, name: str) -> float:
        """Returns the bits per element of a packed parameter, including scales."""
        return 8 * self.encoded(name).size_bytes / max(self.packed_shapes[name].numel(), 1)

    def _decode(self, name: str, stored: Encoded) -> Tensor:
        decoded: Tensor = torch.ops.chop.decode(
            stored.codes,
            stored.scales,
            stored.tensor_scale,
            self.passed_shape(name, stored),
            self.spec.number_format(name).key,
            stored.dtype,
        )
        return decoded

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Writes format and shape of the codes into the metadata.

        `torch.save` stores the metadata; safetensors and plain dicts do not.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata[STATED] = {
                name: (self.spec.number_format(name).key, list(shape))
                for name, shape in self.packed_shapes.items()
            }

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads codes of the layer's own formats and shapes; see `_why_not_loadable`."""
        reasons = _why_not_loadable(self, state_dict, prefix, local_metadata)
        error_msgs.extend(reasons)
        if not reasons:
            rest = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(state_dict, prefix, *rest)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and converts like other quantized operators, including the decoded dtype."""
        super()._apply(fn, recurse)
        probe = torch.empty(0, dtype=self.packed_dtype, device=self.encoded("weight").codes.device)
        self.packed_dtype = fn(probe).dtype
        return self


def _why_not_loadable(
    layer: PackedState, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]
) -> list[str]:
    """Explains why the tensors of a state dict do not fit a layer; empty if they do.

    Warns once if the state dict has no formats of its codes.

    Args:
        layer: the layer that loads them.
        state: the tensors by name.
        prefix: prefix of the layer's names, with the dot.
        metadata: metadata of the layer.
    """
    reasons = []
    for name, shape in layer.packed_shapes.items():
        where, number_format = f"'{prefix}{name}'", layer.spec.number_format(name)
        has_codes = f"{prefix}{name}_codes" in state
        if f"{prefix}{name}" in state and not has_codes:
            reasons.append(
                f"{where} is stored as codes, but the state dict has its values: assign them, "
                f"layer.{name} = values, or load them before packing."
            )
        stated = metadata.get(STATED, {}).get(name)
        if has_codes and stated is not None:
            key, stated_shape = stated
            if not _is_format(key, number_format) or list(stated_shape) != list(shape):
                reasons.append(
                    f"{where} is stored as codes of {number_format.label} and shape {list(shape)}, "
                    f"but the state dict has {_label(key)} and shape {list(stated_shape)}: pack "
                    "the model in that format first."
                )
        elif has_codes:
            warn_once(
                f"the state dict has no format for the codes of {where}; {number_format.label} of "
                f"shape {list(shape)} is assumed. torch.save stores the format.",
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
