"""Graphs that several tests quantize; each test gets its own copy."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from chop import MaseGraph, passes


class Net(nn.Module):
    """Convolution, norm, functional relu, pooling, a method call, two linears and a sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 8)

    def forward(self, x):
        x = nn.functional.relu(self.bn(self.conv(x))).mean((2, 3))
        y = self.fc1(x)
        return (self.fc2(y) + y).softmax(0) @ y.new_ones(8, 2)


def with_metadata(mg):
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return mg


@pytest.fixture(scope="session")
def _net_graph():
    torch.manual_seed(0)
    net = Net().eval()
    return with_metadata(MaseGraph(net, dummy_in={"x": torch.randn(3, 1, 6, 7)}))


@pytest.fixture(scope="session")
def _bert_graph():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config).eval()
    names = ["input_ids", "attention_mask", "labels"]
    return with_metadata(MaseGraph(model, hf_input_names=names))


@pytest.fixture
def net_graph(_net_graph):
    return _net_graph.copy()


@pytest.fixture
def bert_graph(_bert_graph):
    return _bert_graph.copy()


@pytest.fixture
def bert_inputs():
    torch.manual_seed(1)
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[0, 7:] = 0
    return {
        "input_ids": torch.randint(0, 100, (3, 11)),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1, 0]),
    }
