"""Component table: the circuit of each integer operator.

An operator gets a circuit with one row in this table and one SystemVerilog file. Its class in
`chop.nn.integer` is the specification.
"""

from __future__ import annotations

from typing import Any

from chop.base.plugins import Registry
from chop.hardware.design.plan import Component
from chop.hardware.plans import (
    cache,
    convolution,
    elementwise,
    lookup,
    matmul,
    norm,
    reduce,
    reorder,
    requantize_blocks,
    softmax,
    weighted,
    window,
)
from chop.ir.ops import Kind
from chop.nn import integer

_ROWS = (
    Component(integer.IntegerAMax, "chop_sum", reduce.plan_sum, kind=Kind.ARITHMETIC),
    Component(integer.IntegerAbs, "chop_negate", elementwise.plan_abs, kind=Kind.ARITHMETIC),
    Component(
        integer.IntegerAdaptiveAvgPool1d,
        "chop_avg_pool",
        window.plan_avg_pool,
        spatial=1,
        kind=Kind.POOLING,
    ),
    Component(
        integer.IntegerAdaptiveAvgPool2d,
        "chop_avg_pool",
        window.plan_avg_pool,
        spatial=2,
        kind=Kind.POOLING,
    ),
    Component(
        integer.IntegerAdd,
        "chop_add",
        elementwise.plan_add,
        is_broadcast=True,
        kind=Kind.ARITHMETIC,
    ),
    Component(
        integer.IntegerAvgPool1d,
        "chop_avg_pool",
        window.plan_avg_pool,
        spatial=1,
        kind=Kind.POOLING,
    ),
    Component(
        integer.IntegerAvgPool2d,
        "chop_avg_pool",
        window.plan_avg_pool,
        spatial=2,
        kind=Kind.POOLING,
    ),
    Component(integer.IntegerBatchNorm, "chop_affine", elementwise.plan_affine, kind=Kind.NORM),
    Component(
        integer.IntegerCachedMatmul,
        "chop_cached_matmul",
        cache.plan_cached_matmul,
        kind=Kind.PRODUCT,
    ),
    Component(
        integer.IntegerConv1d, "chop_conv", convolution.plan_conv, spatial=1, kind=Kind.PRODUCT
    ),
    Component(
        integer.IntegerConv2d, "chop_conv", convolution.plan_conv, spatial=2, kind=Kind.PRODUCT
    ),
    Component(
        integer.IntegerConvTranspose2d,
        "chop_conv",
        convolution.plan_conv,
        spatial=2,
        kind=Kind.PRODUCT,
    ),
    Component(
        integer.IntegerEmbedding, "chop_embedding", lookup.plan_embedding, kind=Kind.CONSTANT
    ),
    Component(integer.IntegerGroupNorm, "chop_layer_norm", norm.plan_norm, kind=Kind.NORM),
    Component(integer.IntegerLayerNorm, "chop_layer_norm", norm.plan_norm, kind=Kind.NORM),
    Component(integer.IntegerLinear, "chop_linear", weighted.plan_linear, kind=Kind.PRODUCT),
    Component(integer.IntegerMatmul, "chop_matmul", matmul.plan_matmul, kind=Kind.PRODUCT),
    Component(
        integer.IntegerMaxPool1d,
        "chop_max_pool",
        window.plan_max_pool,
        spatial=1,
        kind=Kind.POOLING,
    ),
    Component(
        integer.IntegerMaxPool2d,
        "chop_max_pool",
        window.plan_max_pool,
        spatial=2,
        kind=Kind.POOLING,
    ),
    *(
        Component(kind, "chop_reorder", reorder.plan_resample)
        for kind in (integer.IntegerInterpolate, integer.IntegerPad, integer.IntegerResample)
    ),
    Component(integer.IntegerMean, "chop_sum", reduce.plan_sum, kind=Kind.ARITHMETIC),
    Component(
        integer.IntegerMul,
        "chop_mul",
        elementwise.plan_mul,
        is_broadcast=True,
        kind=Kind.ARITHMETIC,
    ),
    Component(integer.IntegerNegate, "chop_negate", elementwise.plan_negate, kind=Kind.ARITHMETIC),
    Component(integer.IntegerPReLU, "chop_prelu", elementwise.plan_prelu, kind=Kind.ACTIVATION),
    Component(integer.IntegerPosition, "chop_position", cache.plan_position, kind=Kind.ARITHMETIC),
    Component(integer.IntegerRMSNorm, "chop_layer_norm", norm.plan_norm, kind=Kind.NORM),
    Component(integer.IntegerReLU, "chop_relu", elementwise.plan_relu, kind=Kind.ACTIVATION),
    Component(integer.IntegerScale, "chop_scale", elementwise.plan_scale, kind=Kind.ARITHMETIC),
    Component(integer.IntegerSoftmax, "chop_softmax", softmax.plan_softmax, kind=Kind.ACTIVATION),
    Component(
        integer.IntegerSquare,
        "chop_mul",
        elementwise.plan_mul,
        is_broadcast=True,
        kind=Kind.ARITHMETIC,
    ),
    Component(
        integer.IntegerSub,
        "chop_add",
        elementwise.plan_add,
        is_broadcast=True,
        kind=Kind.ARITHMETIC,
    ),
    Component(integer.IntegerSum, "chop_sum", reduce.plan_sum, kind=Kind.ARITHMETIC),
    Component(
        integer.IntegerThresholds,
        "chop_thresholds",
        elementwise.plan_thresholds,
        kind=Kind.ARITHMETIC,
    ),
    Component(
        integer.Requantize, "chop_requantize", elementwise.plan_requantize, kind=Kind.ARITHMETIC
    ),
    Component(
        integer.RequantizeBlocks,
        "chop_requantize_blocks",
        requantize_blocks.plan_requantize_blocks,
        kind=Kind.ARITHMETIC,
    ),
    Component(integer.Table, "chop_table", elementwise.plan_table, kind=Kind.ACTIVATION),
)
COMPONENTS: Registry[Component] = Registry(
    "components",
    {row.operator.__name__: row for row in _ROWS},
    kind=Component,
    own_name=lambda component: component.operator.__name__,
)
"""Components of chop and of plug-ins, by the name of the operator's class."""


def get_component(operator: type[Any]) -> Component | None:
    """Returns the component of an operator class, or None if there is none."""
    row = COMPONENTS.get(operator.__name__)
    return row if row is not None and row.operator is operator else None


def register(row: Component) -> None:
    """Registers the circuit of an operator.

    Raises:
        ConfigError: if another package has registered a circuit for a class of that name.
    """
    COMPONENTS[row.operator.__name__] = row
