"""Operators whose parameters are stored as codes, in as many bits as their formats have.

`pack` turns a quantised operator into its packed twin, which computes the same, bit for bit, from
codes and scales in buffers. One layer at a time is decoded, while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.formats import Encoded, NumberFormat, QuantSpec, from_key
from chop.kernels.triton.register import decode as decode_on_gpu
from chop.nn import quantized as q
from chop.nn.quantized import QuantizedOperator

CODES, SCALES, TENSOR_SCALE = "codes", "scales", "tensor_scale"
KnownCodes = MutableMapping[tuple[int, str], Encoded]
"""Codes by the id of the parameter and the key of the format, so that shared ones stay shared."""


# Registered, so that FX, torch.compile and export see one node; kernels may add implementations.
@torch.library.custom_op("chop::decode", mutates_args=())
def _decode(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    key: str,
) -> Tensor:
    encoded = Encoded(codes, torch.Size(shape), dtype, scales, tensor_scale)
    return from_key(key).decode(encoded).contiguous()


@_decode.register_fake
def _(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    key: str,
) -> Tensor:
    return codes.new_empty(shape, dtype=dtype)


@_decode.register_kernel("cuda")
def _(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    key: str,
) -> Tensor:
    encoded = Encoded(codes, torch.Size(shape), dtype, scales, tensor_scale)
    return decode_on_gpu(encoded, from_key(key))


class PackedOperator(QuantizedOperator):
    """Mixin that replaces the quantised parameters of an operator by their codes.

    The buffers of `weight` are `weight_codes` (uint8, bit-packed, one-dimensional),
    `weight_scales` (uint8 or float32) where the format has scales, and `weight_tensor_scale`
    (float32) where it has one for all; a quantised bias has the same. `module.weight` decodes
    them. Changes of device take the codes along; a change to another floating dtype changes what
    they are decoded to, and float32 scales stay float32.

    A packed operator is made by `pack` and cannot be trained; `unpack` gives the trainable one.
    """

    operator: ClassVar[type[QuantizedOperator]]
    """The class that it packs."""
    packed_shapes: dict[str, torch.Size]
    packed_dtype: torch.dtype
    packed_trainable: tuple[str, ...]
    packed_mask: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self.operator.__name__
        raise ConfigError(f"{type(self).__name__}: pack(layer) makes one from a {name}.")

    @classmethod
    def from_float(cls, module: nn.Module, spec: QuantSpec) -> Self:
        """Packs `module` in the formats of `spec`; see `pack`."""
        return cls.of(cls.operator.from_float(module, spec), {})

    @classmethod
    def of(cls, layer: QuantizedOperator, known: KnownCodes) -> Self:
        """Takes over a quantised layer that nothing keeps from being packed; see `pack`."""
        twin = cls.__new__(cls)
        encoded = {name: _encoded(layer, name, known) for name in packable_operands(layer)}
        parameters = {name: x for name, x in layer._parameters.items() if name not in encoded}
        buffers = {name: x for name, x in layer._buffers.items() if name != "weight_mask"}
        for name, stored in encoded.items():
            parts = zip(
                _buffer_names(name), (stored.codes, stored.scales, stored.tensor_scale), strict=True
            )
            buffers.update({buffer: x for buffer, x in parts if x is not None})
        twin.__dict__.update(layer.__dict__, _parameters=parameters, _buffers=buffers)
        twin.packed_shapes = {name: stored.shape for name, stored in encoded.items()}
        twin.packed_dtype = layer.weight.dtype
        twin.packed_trainable = tuple(n for n in encoded if getattr(layer, n).requires_grad)
        twin.packed_mask = layer.is_pruned
        return twin

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The decoded weight: the values that the operator computes with."""
        return self._decoded("weight")

    @property
    def bias(self) -> Tensor | None:
        """The decoded bias, or the float one, or None."""
        if "bias" in self.packed_shapes:
            return self._decoded("bias")
        return self._parameters.get("bias")

    def encoded(self, name: str) -> Encoded:
        """The codes of a packed parameter."""
        codes, *scales = (self._buffers.get(buffer) for buffer in _buffer_names(name))
        assert codes is not None
        return Encoded(codes, self.packed_shapes[name], self.packed_dtype, *scales)

    def packed_bits(self, name: str) -> float:
        """Bits per element of a packed parameter, counted from its buffers."""
        return 8 * self.encoded(name).size_bytes / max(self.packed_shapes[name].numel(), 1)

    def _decoded(self, name: str, rows: Tensor | None = None) -> Tensor:
        stored = self.encoded(name)
        stored = stored if rows is None else stored.take_rows(rows)
        return torch.ops.chop.decode(
            stored.codes,
            stored.scales,
            stored.tensor_scale,
            list(stored.shape),
            stored.dtype,
            getattr(self.spec, name).key,
        )

    def quantize(self, operand: str | None, x: Any) -> Any:
        """What is packed is in its format already; the rest is quantised as ever.

        Raises:
            ConfigError: the layer is being trained.
        """
        if operand not in self.packed_shapes:
            return super().quantize(operand, x)
        if self.training and torch.is_grad_enabled():
            raise ConfigError(
                f"a {type(self).__name__} cannot be trained: its {operand} is stored as codes. "
                "Call model.eval() to use it, or unpack it to train: "
                "pack_transform_pass(mg, {'unpack': True})."
            )
        return x

    def with_spec(self, spec: QuantSpec) -> QuantizedOperator:  # type: ignore[override]
        """The unpacked operator in other formats."""
        return self.unpack().with_spec(spec)

    def unpack(self) -> QuantizedOperator:
        """The operator with its decoded parameters, which can be trained.

        A layer that was pruned gets a mask: what is zero stays zero.
        """
        twin = self.operator.__new__(self.operator)
        own = {name: x for name, x in vars(self).items() if name not in ATTRIBUTES}
        decoded = {
            name: nn.Parameter(self._decoded(name), name in self.packed_trainable)
            for name in self.packed_shapes
        }
        codes = {buffer for name in decoded for buffer in _buffer_names(name)}
        buffers = {name: x for name, x in self._buffers.items() if name not in codes}
        if self.packed_mask:
            buffers["weight_mask"] = decoded["weight"].detach() != 0
        twin.__dict__.update(own, _parameters={**decoded, **self._parameters}, _buffers=buffers)
        return twin

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and converts as any module, but keeps the dtype of scales."""
        exact = {
            name: x
            for name, x in self._buffers.items()
            if x is not None and name.endswith(SCALES) and x.is_floating_point()
        }
        super()._apply(fn, recurse)
        for name, before in exact.items():
            now = self._buffers[name]
            assert now is not None
            if now.dtype != before.dtype:
                self._buffers[name] = before.to(now.device)
        probe = torch.empty(0, dtype=self.packed_dtype, device=self.encoded("weight").codes.device)
        self.packed_dtype = fn(probe).dtype
        return self


ATTRIBUTES = ("packed_shapes", "packed_dtype", "packed_trainable", "packed_mask")


def _buffer_names(operand: str) -> tuple[str, str, str]:
    return (f"{operand}_{CODES}", f"{operand}_{SCALES}", f"{operand}_{TENSOR_SCALE}")


class PackedLinear(PackedOperator, q.QuantLinear):
    """`QuantLinear` from codes; input (..., in_features) to (..., out_features)."""

    operator = q.QuantLinear


class PackedConv1d(PackedOperator, q.QuantConv1d):
    """`QuantConv1d` from codes; input (N, C, L)."""

    operator = q.QuantConv1d


class PackedConv2d(PackedOperator, q.QuantConv2d):
    """`QuantConv2d` from codes; input (N, C, H, W)."""

    operator = q.QuantConv2d


class PackedConvTranspose2d(PackedOperator, q.QuantConvTranspose2d):
    """`QuantConvTranspose2d` from codes; input (N, C, H, W)."""

    operator = q.QuantConvTranspose2d


class PackedBatchNorm1d(PackedOperator, q.QuantBatchNorm1d):
    """`QuantBatchNorm1d` from codes; input (N, C) or (N, C, L)."""

    operator = q.QuantBatchNorm1d


class PackedBatchNorm2d(PackedOperator, q.QuantBatchNorm2d):
    """`QuantBatchNorm2d` from codes; input (N, C, H, W)."""

    operator = q.QuantBatchNorm2d


class PackedLayerNorm(PackedOperator, q.QuantLayerNorm):
    """`QuantLayerNorm` from codes; input (..., *normalized_shape)."""

    operator = q.QuantLayerNorm


class PackedRMSNorm(PackedOperator, q.QuantRMSNorm):
    """`QuantRMSNorm` from codes; input (..., *normalized_shape)."""

    operator = q.QuantRMSNorm


class PackedGroupNorm(PackedOperator, q.QuantGroupNorm):
    """`QuantGroupNorm` from codes; input (N, C, ...)."""

    operator = q.QuantGroupNorm


class PackedEmbedding(PackedOperator, q.QuantEmbedding):
    """`QuantEmbedding` from codes; indices of any shape to (..., embedding_dim).

    Where rows have codes of their own, only those that are looked up are decoded.
    """

    operator = q.QuantEmbedding

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        by_rows = self.max_norm is None and input.numel() < self.num_embeddings
        if not (by_rows and self.spec.weight.keeps_rows_apart(self.packed_shapes["weight"])):
            return super().forward(input)
        rows = self.quantize("weight", self._decoded("weight", input.reshape(-1)))
        return self.quantize("data_out", rows.view(*input.shape, self.embedding_dim))


PACKED: dict[type[QuantizedOperator], type[PackedOperator]] = {
    cls.operator: cls
    for cls in (
        PackedLinear,
        PackedConv1d,
        PackedConv2d,
        PackedConvTranspose2d,
        PackedBatchNorm1d,
        PackedBatchNorm2d,
        PackedLayerNorm,
        PackedRMSNorm,
        PackedGroupNorm,
        PackedEmbedding,
    )
}
"""The packed twin of each operator with parameters."""


def packed_class(layer: nn.Module) -> type[PackedOperator] | None:
    """The class that packs a layer; None where there is none, or the layer computes more."""
    for ancestor in type(layer).__mro__:
        if ancestor in PACKED and ancestor.forward is type(layer).forward:
            return PACKED[ancestor]
    return None


def packable_operands(layer: QuantizedOperator) -> list[str]:
    """The parameters of a layer that have a format which codes can stand for."""
    present = layer.present_operands(layer)
    return [name for name in present if name != "data_in" and _packs(getattr(layer.spec, name))]


def _packs(number_format: NumberFormat) -> bool:
    is_settled = number_format.is_fitted and number_format.is_deterministic
    return is_settled and not number_format.is_identity


def _encoded(layer: QuantizedOperator, name: str, known: KnownCodes) -> Encoded:
    number_format = getattr(layer.spec, name)
    key = (id(getattr(layer, name)), number_format.key)
    if key not in known:
        known[key] = number_format.encode(layer.effective(name).detach())
    return known[key]


def obstacle(layer: nn.Module, known: KnownCodes | None = None) -> str | None:
    """Why a layer cannot be packed; None if it can.

    Args:
        layer: any module.
        known: takes the codes that had to be made to find out.
    """
    if isinstance(layer, PackedOperator):
        return "is packed already"
    if not isinstance(layer, QuantizedOperator) or layer.spec.weight.is_identity:
        return "has no format for its weight"
    if packed_class(layer) is None:
        return f"is a {type(layer).__name__}, which has no packed form"
    if not layer.spec.weight.is_fitted:
        return "has a weight format that waits for calibration"
    if not layer.spec.weight.is_deterministic:
        return "has a weight format that draws at random"
    return _inexact(layer, {} if known is None else known)


def _inexact(layer: QuantizedOperator, known: KnownCodes) -> str | None:
    """What codes cannot hold."""
    for name in packable_operands(layer):
        stored = getattr(layer.spec, name)
        x = layer.effective(name).detach()
        if not x.isfinite().all():
            return f"has values in its {name} that are not finite"
        if not torch.equal(stored.decode(_encoded(layer, name, known)), layer.quantize(name, x)):
            return f"hides weights by zeros, and {stored.label} has none"
    return None


def pack(layer: QuantizedOperator, known: KnownCodes | None = None) -> PackedOperator:
    """A layer's packed twin: the same outputs, bit for bit, from codes instead of parameters.

    Everything but the quantised parameters is shared with `layer`. A mask is packed with the
    weight that it hides.

    Args:
        layer: a quantised operator with a weight format.
        known: codes of parameters that other layers have packed; takes and gives.

    Raises:
        ConfigError: the layer cannot be packed; the message says why.

    Example:
        >>> layer = q.QuantLinear(64, 32, bias=False, config={"weight": {"name": "mxint"}})
        >>> pack(layer).packed_bits("weight")
        8.25
    """
    known = {} if known is None else known
    reason = obstacle(layer, known)
    cls = packed_class(layer)
    if reason is not None or cls is None:
        raise ConfigError(f"pack: the {type(layer).__name__} {reason}.")
    return cls.of(layer, known)
