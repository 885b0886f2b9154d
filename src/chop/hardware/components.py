"""Component table: the circuit of each integer operator.

An operator gets a circuit by one row here and one SystemVerilog file; its class in
`chop.nn.integer` is the specification.
"""

from __future__ import annotations

from torch import nn

from chop.hardware.plan import Component
from chop.hardware.plans import (
    convolution,
    elementwise,
    lookup,
    matmul,
    norm,
    reduce,
    requantize_blocks,
    softmax,
    weighted,
    window,
)
from chop.ir.ops import Kind
from chop.nn import integer

COMPONENTS: dict[type[nn.Module], Component] = {
    integer.IntegerAdaptiveAvgPool1d: Component(
        "chop_avg_pool", window.plan_avg_pool, spatial=1, kind=Kind.POOLING
    ),
    integer.IntegerAdaptiveAvgPool2d: Component(
        "chop_avg_pool", window.plan_avg_pool, spatial=2, kind=Kind.POOLING
    ),
    integer.IntegerAdd: Component(
        "chop_add", elementwise.plan_add, is_broadcast=True, kind=Kind.ARITHMETIC
    ),
    integer.IntegerAvgPool1d: Component(
        "chop_avg_pool", window.plan_avg_pool, spatial=1, kind=Kind.POOLING
    ),
    integer.IntegerAvgPool2d: Component(
        "chop_avg_pool", window.plan_avg_pool, spatial=2, kind=Kind.POOLING
    ),
    integer.IntegerConv1d: Component(
        "chop_conv", convolution.plan_conv, spatial=1, kind=Kind.PRODUCT
    ),
    integer.IntegerConv2d: Component(
        "chop_conv", convolution.plan_conv, spatial=2, kind=Kind.PRODUCT
    ),
    integer.IntegerEmbedding: Component(
        "chop_embedding", lookup.plan_embedding, kind=Kind.CONSTANT
    ),
    integer.IntegerLayerNorm: Component("chop_layer_norm", norm.plan_norm, kind=Kind.NORM),
    integer.IntegerLinear: Component("chop_linear", weighted.plan_linear, kind=Kind.PRODUCT),
    integer.IntegerMatmul: Component("chop_matmul", matmul.plan_matmul, kind=Kind.PRODUCT),
    integer.IntegerMaxPool1d: Component(
        "chop_max_pool", window.plan_max_pool, spatial=1, kind=Kind.POOLING
    ),
    integer.IntegerMaxPool2d: Component(
        "chop_max_pool", window.plan_max_pool, spatial=2, kind=Kind.POOLING
    ),
    integer.IntegerMean: Component("chop_sum", reduce.plan_sum, kind=Kind.ARITHMETIC),
    integer.IntegerMul: Component(
        "chop_mul", elementwise.plan_mul, is_broadcast=True, kind=Kind.ARITHMETIC
    ),
    integer.IntegerNegate: Component("chop_negate", elementwise.plan_negate, kind=Kind.ARITHMETIC),
    integer.IntegerRMSNorm: Component("chop_layer_norm", norm.plan_norm, kind=Kind.NORM),
    integer.IntegerReLU: Component("chop_relu", elementwise.plan_relu, kind=Kind.ACTIVATION),
    integer.IntegerScale: Component("chop_scale", elementwise.plan_scale, kind=Kind.ARITHMETIC),
    integer.IntegerSoftmax: Component("chop_softmax", softmax.plan_softmax, kind=Kind.ACTIVATION),
    integer.IntegerSub: Component(
        "chop_add", elementwise.plan_add, is_broadcast=True, kind=Kind.ARITHMETIC
    ),
    integer.IntegerSum: Component("chop_sum", reduce.plan_sum, kind=Kind.ARITHMETIC),
    integer.Requantize: Component(
        "chop_requantize", elementwise.plan_requantize, kind=Kind.ARITHMETIC
    ),
    integer.RequantizeBlocks: Component(
        "chop_requantize_blocks", requantize_blocks.plan_requantize_blocks, kind=Kind.ARITHMETIC
    ),
    integer.Table: Component("chop_table", elementwise.plan_table, kind=Kind.ACTIVATION),
}
"""By the class of the operator."""
