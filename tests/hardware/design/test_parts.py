"""Circuits of what joins, parts or repeats tensors without an operator of its own."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.design.emit import emit
from chop.nn.integer import Constant, Decode, Encode, Grid
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
    "class_token": (6, lambda m, x, y: m.last(token_first(m, x, m.row)[:, 0])),
    "class_token_of_a_layer": (
        6,
        lambda m, x, y: m.last(token_first(m, x, m.last(m.row).repeat(1, 2)[:, :6])[:, 0]),
    ),
    "two_class_tokens": (
        6,
        lambda m, x, y: m.last(token_first(m, token_first(m, x, m.row), 0.5 * m.row)[:, :2]),
    ),
    "constant_features": (
        3,
        lambda m, x, y: m.last(
            torch.cat((m.row[:, :3].expand(x.size(0), 2, 3), x.view(-1, 2, 3)), -1)[..., :3]
        ),
    ),
    "class_token_and_others": (6, lambda m, x, y: m.last(token_first(m, x, m.row))),
}


def token_first(model, tokens, row):
    """The tokens behind one that is the same for all samples."""
    tokens = tokens if tokens.dim() == 3 else tokens[:, None]
    return torch.cat((row.expand(tokens.size(0), 1, -1), tokens), 1)


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


class WithConstant(nn.Module):
    """Codes of the input, and codes that do not depend on it.

    Args:
        is_moved: the constant is that of two joined ones.
    """

    def __init__(self, is_moved):
        super().__init__()
        grid, self.is_moved = Grid(0.5, -8, 7), is_moved
        self.encode, self.constant = Encode(grid), Constant(torch.arange(6).view(1, 6), 0.5)
        self.decode, self.decode_constant = Decode(grid.edge), Decode(self.constant.out)

    def forward(self, input):
        codes = self.constant()
        codes = torch.cat((codes, codes), 1) if self.is_moved else codes
        return self.decode(self.encode(input)), self.decode_constant(codes)


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_result_that_depends_on_no_input_is_refused(is_moved):
    batch = {"input": torch.randn(1, 6)}
    leaves = {"modules": {kind: {} for kind in (Constant, Decode, Encode)}}
    mg = MaseGraph(WithConstant(is_moved).eval(), custom_ops=leaves, dummy_in=batch)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    with pytest.raises(ConfigError, match="'(cat|constant)' is the same for all inputs"):
        emit(mg, fold=6)


def test_a_constant_in_front_waits_for_the_sample():
    def waits(name):
        instances = emit(integers(name)[1], fold=24).netlist.instances
        return [
            part.plan.parameters.get("WAITS", 0)
            for part in instances
            if part.module == "chop_concat"
        ]

    assert waits("class_token") == waits("constant_features") == [1]
    assert waits("two_class_tokens") == [1, 1] and waits("stack_of_a_constant") == [0]
