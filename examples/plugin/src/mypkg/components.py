"""Circuit of `maxout`: plan, and the folder of its SystemVerilog."""

from pathlib import Path

import torch

from chop.errors import ConfigError
from chop.hardware.design.lanes import fewest_lanes
from chop.hardware.design.plan import Component, ComponentPlan, Site
from chop.hardware.design.stream import Stream
from chop.ir.ops import Kind
from mypkg.operators import IntegerMaxout

RTL = Path(__file__).parent / "rtl"


def plan_maxout(site: Site) -> ComponentPlan:
    """Returns a plan with a comparison for each lane that leaves."""
    (read,) = site.inputs
    first, second = read.positions[..., ::2], read.positions[..., 1::2]
    if not torch.equal(first // 2 * 2, second - 1):
        raise ConfigError("Maxout: the features of a pair do not travel side by side.")
    lanes = fewest_lanes(read.size // 2, site.fold)
    out = Stream(first // 2, site.operator.out, lanes)
    parameters = {"LANES": lanes, "W": read.width}
    return ComponentPlan(parameters, (2 * lanes,), out, out.beats, holds=(0.0,), buffers=(0,))


MAXOUT = Component(IntegerMaxout, "mypkg_maxout", plan_maxout, RTL, kind=Kind.ACTIVATION)
