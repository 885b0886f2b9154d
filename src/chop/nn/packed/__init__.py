"""Packed operators, whose parameters are stored as codes in the bit width of their formats.

`pack` converts a quantized operator into its packed twin, which computes the same from codes and
scales in buffers.
"""

from chop.nn.packed.base import (
    PACKED,
    KnownCodes,
    PackedOperator,
    drop_packed_twin,
    packed_twin,
)
from chop.nn.packed.decoded import DecodedTensor
from chop.nn.packed.operators import (
    PackedBatchNorm1d,
    PackedBatchNorm2d,
    PackedConv1d,
    PackedConv2d,
    PackedConvTranspose2d,
    PackedEmbedding,
    PackedExpertLinear,
    PackedGroupNorm,
    PackedLayerNorm,
    PackedLinear,
    PackedRMSNorm,
)
from chop.nn.packed.packing import pack, why_not_packable
from chop.nn.packed.rewriting import write

__all__ = [
    "PACKED",
    "DecodedTensor",
    "KnownCodes",
    "PackedBatchNorm1d",
    "PackedBatchNorm2d",
    "PackedConv1d",
    "PackedConv2d",
    "PackedConvTranspose2d",
    "PackedEmbedding",
    "PackedExpertLinear",
    "PackedGroupNorm",
    "PackedLayerNorm",
    "PackedLinear",
    "PackedOperator",
    "PackedRMSNorm",
    "drop_packed_twin",
    "pack",
    "packed_twin",
    "why_not_packable",
    "write",
]
