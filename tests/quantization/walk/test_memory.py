"""A walk over parts in memory gives what one over the whole graph gives."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.formats import parse_format_string
from chop.quantization.folding.awq import awq
from chop.quantization.folding.smoothquant import smooth
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import Gptq
from chop.quantization.walk import values as block_values
from chop.quantization.walk.parts import block_paths, get_parts
from chop.quantization.walk.walk import Walk

SIZE = 16
METHODS = {
    "smoothquant": smooth,
    "awq": lambda walk: awq(walk, parse_format_string("mxint:width=4")),
    "gptq": lambda walk: {
        path: row
        for part in walk.run(Gptq(walk, Solver(actorder=True), weighs_rows=True))
        for path, row in part.report.items()
    },
}


class Block(nn.Module):
    """Two layers read a value that was written in place, and one reads their product."""

    def __init__(self):
        super().__init__()
        self.norm, self.relu = nn.LayerNorm(SIZE), nn.ReLU(inplace=True)
        self.gate, self.up = nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, 2 * SIZE)
        self.down = nn.Linear(2 * SIZE, SIZE)

    def forward(self, x):
        y = self.relu(self.norm(x))
        return x + self.down(self.up(y) * self.gate(y).sigmoid())


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 5)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("memory", [0, 2**27])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.sampled(1)
def test_parts_give_what_the_graph_gives(tmp_path, monkeypatch, dtype, memory, name):
    """Codes and reports are the same, also where the values between parts lie in files."""
    monkeypatch.setattr(block_values, "MEMORY_BYTES", memory)
    torch.manual_seed(0)
    uneven = torch.logspace(-1, 1, SIZE)
    batches = [{"x": (torch.randn(6, 8, SIZE) * uneven).to(dtype)} for _ in range(3)]
    mg = MaseGraph(Stack().to(dtype).eval(), dummy_in=batches[0])
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    if name == "gptq":
        rule = {"by": "type", "linear": {"config": {"weight": {"name": "mxint", "width": 4}}}}
        mg, _ = passes.quantize_transform_pass(mg, rule)
    cut = copy.deepcopy(mg)
    expected = METHODS[name](Walk(mg, batches))
    found = METHODS[name](Walk(cut, batches, get_parts(cut, block_paths(cut.model)), tmp_path))
    assert found == expected and expected
    state = mg.model.state_dict()
    assert all(torch.equal(x, state[key]) for key, x in cut.model.state_dict().items())
    changed = {path for path in (expected if name == "gptq" else expected[0]) if "blocks.1" in path}
    assert len(changed) == (3 if name == "gptq" else 2)
