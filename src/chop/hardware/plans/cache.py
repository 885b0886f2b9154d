"""Plans of the state of a decoder that reads one token at a time."""

from __future__ import annotations

import torch

from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import IN_PLACE, ComponentPlan, Resources, Site
from chop.hardware.design.stream import OrderError, Stream
from chop.hardware.plans.matmul import ROWS_AHEAD, product_latency
from chop.nn.integer import IntegerCachedMatmul, IntegerPosition

ORDER = "the codes are not sent head by head"


def plan_position(site: Site) -> ComponentPlan:
    """Plans the position counter, one token at a time."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerPosition)
    out = Stream.in_order(read.shape, operator.out)
    return ComponentPlan(
        {"LENGTH": operator.length, "IN_W": read.width, "OUT_W": out.width}, (1,), out, 1
    )


def plan_cached_matmul(site: Site) -> ComponentPlan:
    """Plans a product with keys or values in a memory, which stores those of each token in place.

    Raises:
        OrderError: if the codes of an input are not sent head by head, each in order.
    """
    operator, (a, rows, _) = site.operator, site.inputs
    assert isinstance(operator, IntegerCachedMatmul)
    _check_order(a, rows)
    length, features, is_transposed = operator.length, rows.shape[-1], operator.is_transposed

    def cycles(lanes: int) -> int:
        return rows.size // lanes * (1 + operator.groups * length)

    def paced(lanes: int) -> int:
        first = converter_cycles(a.size, a.lanes, lanes if is_transposed else 1)
        return max(cycles(lanes), first, converter_cycles(rows.size, rows.lanes, lanes))

    lanes = first_within(divisors(features), site.fold, paced)
    terms, columns = (features, length) if is_transposed else (length, features)
    lanes_0, out_lanes = (lanes, 1) if is_transposed else (1, lanes)
    out = Stream.in_order((a.shape[0], 1, columns), operator.out, out_lanes)
    parameters = _parameters(site, operator, lanes, out)
    return ComponentPlan(
        parameters,
        lanes=(lanes_0, lanes, 1),
        out=out,
        cycles=cycles(lanes),
        resources=Resources(
            {(a.width, rows.width): lanes},
            length * rows.size * rows.width + terms * a.width,
            is_soft=site.is_soft,
        ),
        holds=(1 / a.shape[0], IN_PLACE, IN_PLACE),
        buffers=(ROWS_AHEAD * terms // lanes_0, 0, 0),
        latency=product_latency(terms, lanes_0, parameters["SOFT"]),
    )


def _check_order(a: Stream, rows: Stream) -> None:
    orders = (torch.arange(each.size).view(each.shape) for each in (a, rows))
    given = zip((a, rows), orders, strict=True)
    wanted = {
        k: order for k, (each, order) in enumerate(given) if not torch.equal(each.positions, order)
    }
    if wanted:
        raise OrderError(ORDER, wanted)


def _parameters(
    site: Site, operator: IntegerCachedMatmul, lanes: int, out: Stream
) -> dict[str, int]:
    a, rows, position = site.inputs
    return {
        "LANES": lanes,
        "LENGTH": operator.length,
        "HEADS": rows.shape[0],
        "GROUPS": operator.groups,
        "FEATURES": rows.shape[-1],
        "TRANSPOSED": int(operator.is_transposed),
        "IN_0_W": a.width,
        "IN_1_W": rows.width,
        "IN_2_W": position.width,
        "OUT_W": out.width,
        "SOFT": site.soft(a.width, rows.width),
    }
