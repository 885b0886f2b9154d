"""What is told of layers that a method of rounding leaves alone."""

import torch
from torch import nn

from chop import MaseGraph
from chop.actions.compress.ptq import describe_skipped


def test_layers_left_alone_are_told_by_method_and_reason():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    mg = MaseGraph(model, dummy_in={"input": torch.randn(1, 2)})
    names = [node.name for node in mg.nodes if node.op == "call_module"]
    gptq = {names[0]: "it is shared", f"{names[1]}[3]": "it saw few rows"}
    left = {"awq": dict.fromkeys(names, "no norm is before it"), "gptq": gptq, "rotate": {}}
    assert describe_skipped(mg, left) == (
        "AWQ left these layers unscaled: 4 (0 ... 3): no norm is before it. "
        "GPTQ left these layers at the nearest number: 0: it is shared; 1[3]: it saw few rows."
    )
    assert describe_skipped(mg, {"gptq": {}}) is None
