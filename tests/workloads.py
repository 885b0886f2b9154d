"""Small trained models and their rows, for tests of mixed precision and of other tasks."""

from functools import cache
from pathlib import Path

import torch
from torch import nn

from chop import MaseGraph, passes
from chop.data.points import toy
from chop.models import get_tokenizer
from chop.train import Rows, fit, read_rows
from chop.workloads.workload import Workload


class Classifier(nn.Module):
    """Two layers that matter, one whose weights are zero, and a product of activations."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.dead = nn.Linear(24, 24)
        self.last = nn.Linear(24, 5)
        nn.init.zeros_(self.dead.weight)
        nn.init.zeros_(self.dead.bias)
        self.dead.requires_grad_(False)

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = y + self.dead(y)
        return self.last(y * torch.matmul(y, y.transpose(0, 1)).diagonal()[:, None].rsqrt())


@cache
def rows() -> tuple[Rows, Rows]:
    """Training and test rows."""
    splits = toy()
    return read_rows(splits["train"]), read_rows(splits["test"])


@cache
def _graph() -> MaseGraph:
    torch.manual_seed(0)
    model = Classifier()
    fit(model, rows()[0], epochs=4, lr=1e-2)
    mg = MaseGraph(model.eval(), dummy_in={"x": torch.randn(3, 16)})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    return passes.add_common_metadata_analysis_pass(mg)[0]


def plain() -> Classifier:
    """The same model before it was a graph."""
    model = Classifier()
    model.load_state_dict(_graph().model.state_dict())
    return model.eval()


def graph() -> MaseGraph:
    """The trained model with metadata; each caller gets a copy."""
    return _graph().copy()


def own_text_model(folder: Path) -> Path:
    """A folder with a body without a classifier, as people download it, and its tokenizer."""
    from transformers import BertConfig, BertModel

    tokenizer = get_tokenizer("bert-tiny")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=1, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


class Bigram(nn.Module):
    """Tells the next token by the last one."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids))


def language():
    """A trained language model of counting texts: 40 to train on, 20 to test on."""
    torch.manual_seed(0)
    rows = [{"input_ids": torch.arange(i % 5, i % 5 + 6 + i % 3)} for i in range(60)]
    model = Bigram()
    fit(model, rows, task="causal-lm", epochs=15, lr=3e-2, batch_size=10)
    return Workload.of(model, rows[:40], rows[40:], task="causal-lm")


def untrained() -> Workload:
    """Two layers with random weights, and 60 rows of two classes, to train and to test on."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
    rows = (x, (x[:, 0] > 0).long())
    return Workload.of(net, train=rows, test=rows)
