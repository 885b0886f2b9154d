"""What of eleven architectures cannot be sharded; a new torch breaks this first.

Operators that DTensor has no rule for compute on whole tensors, and nodes of which no other layout
is found are replicated. Both are named here, by architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.distributed.planning import Machine
from chop.distributed.planning.problem import GraphProblem, graph_problem
from chop.private.dtensor import operators_without_rule
from tests.distributed.graphs import MODELS, SIZES, TEXT, graph_of, list_inputs

MACHINE = Machine.of((2,), 1e12, 1e11, 1e9, 0.0)
MOST = 0.02
"""Share of the operations in nodes that are replicated."""
PICTURES = {**SIZES, "intermediate_size": 64, "image_size": 16, "patch_size": 4}
GROUPED = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
OTHERS: dict[str, Callable[[Any], nn.Module]] = {
    "distilbert": lambda t: t.DistilBertForSequenceClassification(
        t.DistilBertConfig(
            dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=99, max_position_embeddings=64
        )
    ),
    "qwen2": lambda t: t.Qwen2ForCausalLM(t.Qwen2Config(**GROUPED)),
    "albert": lambda t: t.AlbertForSequenceClassification(
        t.AlbertConfig(**TEXT, embedding_size=32)
    ),
    "gpt_neox": lambda t: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**TEXT, use_cache=False)),
    "beit": lambda t: t.BeitForImageClassification(t.BeitConfig(**PICTURES)),
}
SHORT = ("bert", "llama")


def problem_of(name: str) -> GraphProblem:
    import transformers

    inputs = list_inputs("vit" if name == "beit" else name, 4, 8)
    if name in MODELS:
        return graph_problem(graph_of(name), inputs, MACHINE, exact=False)
    torch.manual_seed(0)
    mg = MaseGraph(OTHERS[name](transformers).eval(), hf_input_names=list(inputs))
    return graph_problem(mg, inputs, MACHINE, exact=False)


def replicated(found: GraphProblem) -> set[str]:
    """The targets of nodes that read inputs or have parameters, and have one layout."""
    running, names = set(), set()
    for node, call, member in zip(found.nodes, found.calls, found.members, strict=True):
        if node.op == "placeholder" or (call.tensors and node.op != "get_attr"):
            running.add(node)
        if any(source in running for source in call.sources):
            running.add(node)
        is_call = node.op.startswith("call_")
        if is_call and node in running and len(found.problem.nodes[member].choices) == 1:
            names.add(getattr(node.target, "__name__", str(node.target)))
    return names


ALL = [
    pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
    for name in (*MODELS, *OTHERS)
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.long
def test_what_is_replicated_is_known(name: str):
    before = set(operators_without_rule())
    found = problem_of(name)
    assert set(operators_without_rule()) <= before
    assert sum(found.fallbacks.values()) <= MOST
    assert not found.fallbacks
    assert replicated(found) == set()
    several = [node for node in found.problem.nodes if len(node.choices) > 1]
    assert len(several) > len(found.problem.nodes) / 3


class Renormed(nn.Module):
    """Between two products one operator that DTensor has no rule for."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, input):
        return self.last(torch.renorm(self.first(input), 2, 0, 1.0))


def test_an_operator_without_a_rule_is_named_and_the_rest_is_sharded():
    inputs = {"input": torch.ones(4, 8)}
    mg = MaseGraph(Renormed(), dummy_in=inputs)
    found = graph_problem(mg, inputs, MACHINE, exact=False)
    assert "prims.where.default" in operators_without_rule()  # which it is made of
    assert replicated(found) == {"renorm"}
    assert found.fallbacks == {}  # it multiplies nothing
    choices = {node.name: len(node.choices) for node in found.problem.nodes}
    assert choices["first"] > 3 and choices["last"] > 3


class Mixed(nn.Module):
    """A product by a table that one sample in each process cannot have a part of."""

    def forward(self, input):
        return input @ input.T


def test_products_that_no_process_can_share_count_with_their_operations():
    inputs = {"input": torch.ones(3, 5)}
    found = graph_problem(MaseGraph(Mixed(), dummy_in=inputs), inputs, MACHINE, exact=False)
    assert found.fallbacks == {"matmul": 1.0}
    inputs = {"input": torch.ones(4, 6)}
    found = graph_problem(MaseGraph(Mixed(), dummy_in=inputs), inputs, MACHINE, exact=False)
    assert found.fallbacks == {}
