"""Plans of operators that treat each code by itself."""

from __future__ import annotations

from collections.abc import Mapping

from chop.hardware.lanes import fewest_lanes
from chop.hardware.plan import Memory, Plan, Resources, Site
from chop.nn.integer import IntegerOperator, IntegerReLU


def _elementwise(
    site: Site,
    parameters: Mapping[str, int | str],
    memories: Mapping[str, Memory] | None = None,
    multiplier: tuple[int, int] | None = None,
) -> Plan:
    """A plan with a result for each code of the first input, one beat in each cycle.

    Args:
        site: where the operator stands.
        parameters: beside `LANES`, `IN_W` and `OUT_W`.
        memories: read-only.
        multiplier: widths in bits of the one multiplier of a lane.
    """
    assert isinstance(site.operator, IntegerOperator)
    read = site.inputs[0]
    lanes = fewest_lanes(read.size, site.fold)
    out = read.of(site.operator.out).with_lanes(lanes)
    return Plan(
        parameters={"LANES": lanes, **parameters, "OUT_W": out.width},
        lanes=(lanes,) * len(site.inputs),
        out=out,
        cycles=out.beats,
        memories=memories or {},
        resources=Resources({multiplier: lanes} if multiplier else {}),
        holds=(0.0,) * len(site.inputs),
        buffers=(0,) * len(site.inputs),
    )


def plan_relu(site: Site) -> Plan:
    """ReLU."""
    assert isinstance(site.operator, IntegerReLU)
    return _elementwise(site, {"IN_W": site.inputs[0].width})
