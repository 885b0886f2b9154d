"""Plan of a matrix product of two streams."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import OrderError, Stream
from chop.hardware.plans.weighted import PRODUCT_STAGES
from chop.nn.integer import IntegerMatmul

ORDER = "the operands are not sent row by row, each row head by head"
ROWS_AHEAD = 2
"""Rows in a FIFO for the first operand, which is read in bursts, once for all results of a row."""


def plan_matmul(site: Site) -> ComponentPlan:
    """Plans a product row by row and head by head, with the second operand in a memory."""
    operator, (a, b) = site.operator, site.inputs
    assert isinstance(operator, IntegerMatmul)
    heads, rows, terms, columns = _sizes(a, b)
    transposed = _is_transposed(a, b, heads)
    products = heads * rows * terms * columns

    def cycles(lanes: int) -> int:
        first = converter_cycles(a.size, a.lanes, lanes) if transposed else 0
        return max(products // lanes, first, converter_cycles(b.size, b.lanes, lanes))

    lanes = first_within(divisors(terms if transposed else columns), site.fold, cycles)
    result = _head_by_head(heads, rows, columns).reshape(*a.shape[:-1], columns)
    out = Stream(result, operator.out, 1 if transposed else lanes)
    lanes_0, soft = lanes if transposed else 1, site.soft(a.width, b.width)
    return ComponentPlan(
        parameters={
            "LANES": lanes,
            "ROWS": rows,
            "HEADS": heads,
            "IN_FEATURES": terms,
            "OUT_FEATURES": columns,
            "TRANSPOSED": int(transposed),
            "IN_0_W": a.width,
            "IN_1_W": b.width,
            "OUT_W": out.width,
            "SOFT": soft,
        },
        lanes=(lanes_0, lanes),
        out=out,
        cycles=products // lanes,
        resources=Resources(
            {(a.width, b.width): lanes},
            # Two banks of the second operand, one for each of two successive samples, and a row of
            # the first.
            2 * b.size * b.width + terms * a.width,
            is_soft=site.is_soft,
        ),
        holds=(1 / (heads * rows), 1.0),
        buffers=(ROWS_AHEAD * terms // lanes_0, 0),
        latency=product_latency(terms, lanes_0, soft),
    )


def product_latency(terms: int, lanes: int, soft: int) -> int:
    """Returns the cycles from the last code of the second operand to the first result.

    Once the second operand is there, a row of the first one is read.

    Args:
        terms: products of a sum.
        lanes: lanes of the first operand.
        soft: SOFT of `chop_multiplier`.
    """
    return terms // lanes + PRODUCT_STAGES + max(soft - 1, 0) + (lanes - 1).bit_length()


def _sizes(a: Stream, b: Stream) -> tuple[int, int, int, int]:
    """Returns heads, rows, terms of a sum, and columns.

    Raises:
        ConfigError: if the operands are not matrices with the same leading dimensions.
    """
    if len(a.shape) < 2 or a.shape[:-2] != b.shape[:-2]:
        raise ConfigError(f"a product of {a.shape} and {b.shape} has no circuit")
    return math.prod(a.shape[:-2]), a.shape[-2], a.shape[-1], b.shape[-1]


def _is_transposed(a: Stream, b: Stream, heads: int) -> bool:
    """Returns whether the second operand sends the terms of a sum fastest instead of the columns.

    Raises:
        OrderError: if the operands have another order.
    """
    rows, terms, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    by_head = b.positions.reshape(heads, terms, columns)
    wanted = _head_by_head(heads, rows, terms), _head_by_head(heads, terms, columns)
    is_transposed = torch.equal(by_head.transpose(1, 2), _head_by_head(heads, columns, terms))
    if not torch.equal(a.positions.reshape(heads, rows, terms), wanted[0]):
        raise OrderError(ORDER, {0: wanted[0].reshape(a.shape)})
    if not is_transposed and not torch.equal(by_head, wanted[1]):
        raise OrderError(ORDER, {1: wanted[1].reshape(b.shape)})
    return is_transposed


def _head_by_head(heads: int, rows: int, features: int) -> Tensor:
    """Returns stream positions, int64 (heads, rows, features), sent row by row, head by head."""
    return torch.arange(heads * rows * features).view(rows, heads, features).transpose(0, 1)
