"""Extensions of `mypkg`, checked by the laws of chop."""

import shutil

import pytest
import torch
from mypkg.formats import IntGroup
from mypkg.operators import MAXOUT, IntegerMaxout, Maxout
from torch import nn

from chop import MaseGraph
from chop.nn.integer import Edge
from chop.testing import (
    check_component,
    check_format,
    check_operator,
    check_pass,
    check_sampler,
    draw_codes,
)

TOOLS = ("verilator", "iverilog", "yosys")


def test_the_format():
    check_format(IntGroup, [IntGroup(4), IntGroup(8, group_size=16)])


def test_the_pass():
    inputs = {"input": torch.randn(2, 4)}
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    mg = MaseGraph(model, dummy_in=inputs)
    check_pass("replace_activations_transform_pass", mg, inputs, {"target": "hardswish"})


def test_the_sampler():
    check_sampler("hill")


def test_the_operator():
    check_operator(MAXOUT, (Maxout(), 3 * torch.randn(5, 6)))


@pytest.mark.skipif(None in map(shutil.which, TOOLS), reason="needs Verilator, Icarus and Yosys")
@pytest.mark.parametrize(("shape", "fold"), [((17, 12), 51), ((10,), 1)])
def test_the_component(shape, fold):
    edge = Edge.of(0.25, -128, 127)
    check_component(IntegerMaxout(edge), draw_codes(edge, *shape), fold=fold)
