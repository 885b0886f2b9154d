"""Extensions of `mypkg`, checked by the laws of chop."""

import torch
from mypkg.formats import IntGroup
from torch import nn

from chop import MaseGraph
from chop.testing import check_format, check_pass, check_sampler


def test_the_format():
    check_format(IntGroup, [IntGroup(4), IntGroup(8, group_size=16)])


def test_the_pass():
    inputs = {"input": torch.randn(2, 4)}
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    mg = MaseGraph(model, dummy_in=inputs)
    check_pass("replace_activations_transform_pass", mg, inputs, {"target": "hardswish"})


def test_the_sampler():
    check_sampler("hill")
