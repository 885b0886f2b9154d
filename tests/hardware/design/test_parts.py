"""Circuits of what joins, parts or repeats tensors without an operator of its own."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.design.emit import emit
from tests.hardware.bench import check_graph, needs_tools

pytestmark = needs_tools
INTEGER = {"config": {"name": "integer", "width": 8, "frac_width": 5}}


class Parts(nn.Module):
    """Layers around a function of their results."""

    def __init__(self, between, inputs=6):
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(8, 6)
        self.last, self.between = nn.Linear(inputs, 4), between
        self.register_buffer("row", torch.ones(1, 6))

    def forward(self, input):
        return self.between(self, self.first(input), self.second(input))


def sum_of_layers(model, parts):
    first, *others = [model.last(part) for part in parts]
    return sum(others, first)


CASES = {
    "stack": (6, lambda m, x, y: m.last(torch.stack((x, y, x), 1))),
    "stack_last": (
        6,
        lambda m, x, y: m.last(torch.stack((x, y), -1).flatten(1).view(-1, 2, 6)),
    ),
    "stack_of_a_constant": (
        6,
        lambda m, x, y: m.last(torch.stack((x, m.row.expand(x.size(0), -1)), -2)),
    ),
    "stack_by_its_name": (6, lambda m, x, y: m.last(torch.stack(tensors=[x, y], dim=1))),
    "cat_along_an_axis": (12, lambda m, x, y: m.last(torch.cat((x, y), axis=-1))),
    "chunk": (3, lambda m, x, y: sum_of_layers(m, (x + y).chunk(2, -1))),
    "chunk_of_a_chunk": (
        2,
        lambda m, x, y: sum_of_layers(m, x.chunk(2, 1)[1].split((1, 2), -1)[1:]),
    ),
    "one_chunk": (6, lambda m, x, y: sum_of_layers(m, x.chunk(1, -1))),
    "split": (2, lambda m, x, y: sum_of_layers(m, x.split(2, -1)[1:])),
    "unbind": (3, lambda m, x, y: sum_of_layers(m, x.view(-1, 2, 3).unbind(1))),
    "repeat": (6, lambda m, x, y: m.last(x[:, None].repeat(1, 3, 1))),
    "repeat_interleave": (
        6,
        lambda m, x, y: m.last(x.repeat_interleave(2, -1).view(-1, 2, 6)),
    ),
    "repeated_heads": (
        3,
        lambda m, x, y: m.last(x.view(-1, 2, 3).repeat_interleave(2, dim=1)),
    ),
}


def integers(name):
    torch.manual_seed(0)
    inputs, between = CASES[name]
    batch = {"input": torch.randn(4, 8)}
    mg = MaseGraph(Parts(between, inputs), dummy_in=batch)
    kinds = {
        "linear",
        *({"add"} if any(mg.operator(node).name == "add" for node in mg.nodes) else ()),
    }
    quantized, _ = passes.quantize_transform_pass(
        mg, {"by": "type"} | dict.fromkeys(kinds, INTEGER)
    )
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    return quantized, integer, batch


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long
def test_a_model_that_joins_or_parts_is_a_circuit(name, tmp_path):
    quantized, integer, batch = integers(name)
    design, outputs, *_ = check_graph(integer, batch, 24, tmp_path)
    assert torch.equal(outputs, quantized.model(**batch))
    modules = {instance.module for instance in design.netlist.instances}
    assert modules & {"chop_concat", "chop_select", "chop_copies"} or name == "one_chunk"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (
            lambda m, x, y: m.last(torch.stack((x, y), 0).flatten(0, 1)),
            "keep the samples of a batch",
        ),
        (lambda m, x, y: m.last(torch.cat(x.chunk(2, 0)[::-1])), "samples"),
        (lambda m, x, y: m.last(x.repeat_interleave(2, 0)), "samples"),
    ],
    ids=("stack", "chunk", "repeat"),
)
def test_samples_are_not_joined_or_parted(between, reason, monkeypatch):
    monkeypatch.setitem(CASES, "samples", (6, between))
    with pytest.raises(ConfigError, match=reason):
        emit(integers("samples")[1], fold=24)
