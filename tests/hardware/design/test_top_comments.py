"""Comments of a top module: each instance with its layer, below the module of the model."""

import re

import torch
from torch import nn

from chop import MaseGraph, passes
from chop.hardware.design.emit import emit

FORMAT = {"config": {"name": "integer", "width": 6, "frac_width": 3}}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def test_instances_are_below_the_module_that_they_belong_to():
    model = nn.Sequential()
    model.add_module("body\n endmodule", nn.Sequential(Block(), Block()))
    model.add_module("head", nn.Linear(6, 2))
    mg = MaseGraph(model, dummy_in={"input": torch.randn(3, 6)})
    kinds = {"by": "type", "linear": FORMAT, "relu": FORMAT, "add": FORMAT}
    design = emit(passes.quantize_transform_pass(mg, kinds)[0], 24)
    text = design.files["rtl/top.sv"]
    assert text.count("endmodule\n") == 1
    places, owner = {}, None
    for line in text.splitlines():
        if found := re.match(r"  // Module (.*)$", line):
            owner = found[1]
        elif found := re.match(r"  // Layer (\w+): (Integer\w+)$", line):
            places.setdefault((owner, found[1]), found[2])
    for number in "01":
        block = f"body__endmodule.{number}"
        assert places[block, "up"] == places[block, "down"] == "IntegerLinear"
        assert places[block, "act"] == "IntegerReLU"
    assert places["of the model", "head"] == "IntegerLinear"
    instances = re.findall(r"\) (u_\w+) \($", text, re.MULTILINE)
    assert {f"u_{part.name}" for part in design.netlist.instances} <= {*instances}
