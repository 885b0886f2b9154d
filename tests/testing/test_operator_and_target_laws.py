"""Laws of operators and export targets: chop's own obey, and a broken one is named."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.target import Target
from chop.export.targets import TARGETS
from chop.ir.ops import OPS, Kind, Operator, register, unregister
from chop.nn.packed import PACKED
from chop.nn.quantized import QuantizedOperator
from chop.testing import check_operator, check_target

EXAMPLES = {
    "linear": (lambda: nn.Linear(4, 8), (5, 4)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(3), (2, 3, 6, 6)),
    "layer_norm": (lambda: nn.LayerNorm(4), (5, 4)),
    "relu": (nn.ReLU, (5, 4)),
    "gelu": (nn.GELU, (5, 4)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (2, 3, 6, 6)),
    "flatten": (nn.Flatten, (2, 3, 4)),
    "identity": (nn.Identity, (2, 3)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", EXAMPLES)
def test_operators_of_chop_obey(name):
    torch.manual_seed(0)
    make, shape = EXAMPLES[name]
    module = make()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    check_operator(OPS[name], (module, 2 * torch.randn(shape)))


class Shrink(nn.Module):
    """`input * weight`, for each feature."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, 0.7, -1.2, 0.9]))

    def forward(self, input):
        return input * self.weight


class QuantShrink(QuantizedOperator, Shrink):
    operands = ("data_in", "weight")

    def forward(self, input):
        Q = self.quantize
        return Q("data_out", Q("data_in", input) * Q("weight", self.weight))


class Gate(nn.Module):
    """The larger of two inputs, beside a mask that is no number."""

    def forward(self, input, other, mask):
        return torch.where(mask, torch.maximum(input, other), input)


class QuantGate(QuantizedOperator, Gate):
    operands = ("data_in",)

    def forward(self, input, other, mask):
        Q = self.quantize
        return Q("data_out", super().forward(Q("data_in", input), Q("data_in", other), mask))


class ForgetfulGate(QuantizedOperator, Gate):
    operands = ("data_in",)

    def forward(self, input, other, mask):
        return self.quantize(
            "data_out", super().forward(self.quantize("data_in", input), other, mask)
        )


@pytest.mark.parametrize("quantized", [QuantGate, ForgetfulGate])
def test_an_operator_with_several_inputs(quantized):
    row = Operator("gate", "module", (Gate,), quantized=quantized, is_homogeneous=True)
    x, other = 3 * torch.randn(2, 5, 6)
    register(row)
    try:
        example = (Gate(), (x, other, x > 1))
        if quantized is QuantGate:
            check_operator(row, example)
        else:
            with pytest.raises(AssertionError, match="each input is rounded': input 1 is not"):
                check_operator(row, example)
    finally:
        unregister("gate")


class ForgetfulShrink(QuantizedOperator, Shrink):
    operands = ("data_in", "weight")

    def forward(self, input):
        return self.quantize("data_out", self.quantize("data_in", input) * self.weight)


class WrongShrink(QuantShrink):
    def forward(self, input):
        return super().forward(input) + 1


class StuckShrink(QuantShrink):
    def forward(self, input):
        return super().forward(input.detach())


RIGHT = Operator("shrink", "module", (Shrink,), quantized=QuantShrink, kind=Kind.NORM)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({}, None),
        ({"is_homogeneous": True}, None),
        ({"is_affine": True}, None),
        ({"commutes": True}, "rounding commutes.*results differ"),
        ({"flops": lambda given, result: 0.5}, "flops are counted"),
        ({"quantized": ForgetfulShrink}, "each operand is rounded.*'weight' is not rounded"),
        ({"quantized": WrongShrink}, "a wide format changes nothing"),
        ({"quantized": StuckShrink}, "gradients reach the input .*the input 0 has no gradient"),
    ],
)
def test_a_row_that_breaks_a_law_is_named(changes, law):
    row = dataclasses.replace(RIGHT, **changes)
    register(row)
    example = (Shrink(), 2 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    try:
        if law is None:
            check_operator(row, example)
        else:
            with pytest.raises(AssertionError, match=rf"(?s)shrink breaks the law '{law}"):
                check_operator(row, example)
    finally:
        unregister("shrink")
        PACKED.pop(row.quantized, None)


def test_a_row_that_nobody_registered_is_named():
    with pytest.raises(AssertionError, match="the table has no such row"):
        check_operator(RIGHT, (Shrink(), torch.ones(2, 4)))


def refusals(mg):
    return {
        name: "no linear layer"
        for name, module in mg.model.named_modules()
        if name and not isinstance(module, nn.Linear)
    }


def write(mg, path, tokenizer):
    if found := refusals(mg):
        raise ConfigError(f"npz: {found}")
    np.savez(path, weight=mg.modules["0"].weight.numpy(force=True))
    return {}


def runner(path):
    with np.load(path) as arrays:
        weight = torch.from_numpy(arrays["weight"])
    return lambda inputs: {"output": inputs["input"] @ weight.T}


NPZ = Target(
    "npz", "NumPy", "float", "numpy", "", ".npz", write, runner, refusals=refusals, is_timed=False
)


def writes_first(mg, path, tokenizer):
    path.write_bytes(b"half")
    return write(mg, path, tokenizer)


def scales(mg, path, tokenizer):
    with torch.no_grad():
        mg.modules["0"].weight *= 2
    return write(mg, path, tokenizer)


@pytest.fixture
def graphs():
    torch.manual_seed(0)
    inputs = {"input": torch.randn(3, 4)}
    layers = (nn.Linear(4, 2, bias=False), nn.ReLU())
    return [MaseGraph(nn.Sequential(*layers[:k]), dummy_in=inputs) for k in (1, 2)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({}, None),
        ({"read": lambda path: 1 / 0}, "outputs of the file.*: ZeroDivisionError: division"),
        ({"write": scales}, "the given graph stays as it was"),
        ({"write": writes_first}, "a refusal writes nothing.*left"),
        ({"write": lambda mg, path, tokenizer: {}}, "it holds what it does not refuse"),
        ({"refusals": lambda mg: {}}, "a refusal writes nothing"),
        ({"read": lambda path: lambda x: x["input"]}, "outputs of the file.*outputs by name"),
        ({"read": lambda path: lambda x: {"output": -runner(path)(x)["output"]}}, "outputs of the"),
        ({"weights": lambda path: {"0": torch.zeros(2, 4)}}, "weights of the file"),
    ],
)
@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_target_that_breaks_a_law_is_named(changes, law, is_quantized, graphs):
    held, refused = graphs
    if is_quantized:
        config = {"by": "type", "linear": {"config": {"name": "mxint", "weight_width": 8}}}
        held = passes.quantize_transform_pass(held, config)[0]
        held = passes.pack_transform_pass(held, {"silent": True})[0]
    elif "weights" in changes:
        law = None  # there is no packed weight
    if is_quantized and changes.get("write") is scales:
        return  # packed weights are not written to
    TARGETS["npz"] = dataclasses.replace(NPZ, **changes)
    try:
        if law is None:
            check_target("npz", held, refused)
        else:
            with pytest.raises(AssertionError, match=rf"(?s)npz breaks the law '{law}"):
                check_target("npz", held, refused)
    finally:
        del TARGETS["npz"]


@pytest.mark.parametrize("name", ["onnx", pytest.param("pt2", marks=pytest.mark.long)])
def test_targets_of_chop_obey(name, graphs):
    check_target(name, graphs[1])
