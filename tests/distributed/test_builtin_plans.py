"""Megatron's plan and rows of weights: which layers are cut how, and what is sent."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chop import MaseGraph
from chop.distributed import process
from chop.distributed.apply import shard_graph
from chop.distributed.builtin_plans import (
    PLANS,
    find_plan,
    megatron_plan,
    replicate_plan,
    rows_plan,
)
from chop.errors import PlanError
from tests.distributed import cluster
from tests.distributed.graphs import MODELS, graph_of, list_inputs

ATTENTION = {"q_proj": "S0", "k_proj": "S0", "v_proj": "S0"}
SELF = {f"self.{name}": "S0" for name in ("query", "key", "value")}
BERT = {**SELF, "attention.output.dense": "S1", "intermediate.dense": "S0", "output.dense": "S1"}
LAYERS = {
    "bert": {**BERT, "pooler.dense": "S0", "classifier": "S1"},
    "roberta": {**BERT, "classifier.dense": "S0", "classifier.out_proj": "S1"},
    # The fused query, key and value are gathered.
    "gpt2": {"c_attn": "S0", "attn.c_proj": "S1", "c_fc": "S0", "mlp.c_proj": "S1"},
    "opt": {**ATTENTION, "out_proj": "S1", "fc1": "S0", "fc2": "S1"},
    "llama": {**ATTENTION, "o_proj": "S1", "gate_proj": "S0", "up_proj": "S0", "down_proj": "S1"},
    "vit": {**ATTENTION, "o_proj": "S1", "fc1": "S0", "fc2": "S1"},
}
"""The end of a layer's path -> how Megatron-LM cuts its weight."""
SENT = {
    # Two sums per block, one of pooler and classifier.
    "bert": {"all_reduce": 5},
    "roberta": {"all_reduce": 5},
    "opt": {"all_reduce": 4},
    "llama": {"all_reduce": 4},
    "vit": {"all_reduce": 4},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS)
def test_megatron_cuts_pairs_of_layers(model: str):
    mg = graph_of(model)
    plan = megatron_plan(mg, (2,))
    matrices = {path for path, tensor in mg.model.named_parameters() if tensor.ndim == 2}
    layers = {path.removesuffix(".weight") for path in matrices}
    expected = {}
    for layer in layers:
        ends = [end for end in LAYERS[model] if layer.endswith(end)]
        if ends:
            expected[f"{layer}.weight"] = (LAYERS[model][max(ends, key=len)],)
    found = {path: texts for path, texts in plan.parameters.items() if path in matrices}
    assert found == expected and found
    vectors = plan.parameters.keys() - matrices
    for path in vectors:
        assert plan.parameters[path] == ("S0",)
        assert set(plan.parameters[path.removesuffix("bias") + "weight"]) == {"S0"}


def test_rows_cut_each_matrix_that_divides():
    mg = graph_of("bert")
    weights = [
        path for path, x in rows_plan(mg, (2,)).parameters.items() if path.endswith("weight")
    ]
    linear = [path for path, x in mg.model.named_modules() if isinstance(x, nn.Linear)]
    assert sorted(weights) == sorted(f"{path}.weight" for path in linear)
    # Two classes do not divide by four.
    assert "classifier.weight" not in rows_plan(mg, (4,)).parameters
    assert rows_plan(mg, (2, 2)).parameters["classifier.weight"] == ("R", "S0")


@pytest.mark.parametrize(
    ("net", "name", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 2)),
            "rows",
            "sizes 2, 4, which 3 processes cannot share evenly",
        ),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), "megatron", "2, 4, 8, which"),
        (nn.Sequential(nn.Linear(3, 6)), "megatron", "no layers of the kind"),
    ],
)
def test_a_plan_that_shards_nothing_is_refused_with_the_reason(net, name, message):
    mg = MaseGraph(net)
    with pytest.raises(PlanError, match=f"plan '{name}' shards nothing: .*{message}"):
        find_plan(name, mg, 3)
    assert find_plan("replicate", mg, 3).parameters == {}


def test_replicated_is_replicated():
    assert replicate_plan(graph_of("bert"), (2,)).parameters == {}


class Collectives(TorchDispatchMode):
    """Counts all-reduces, all-gathers and all-to-alls."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "_c10d_functional" and func._schema.name.count("all_"):
            self.counts[func._schema.name.partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


def sent_by(folder: str) -> dict[str, dict[str, int]]:
    mesh = process.start((2,), "gloo")
    found = {}
    for model in SENT:
        mg = MaseGraph.from_checkpoint(f"{folder}/{model}")
        shard_graph(mg, PLANS["megatron"](mg, (2,)), mesh)
        with torch.no_grad(), Collectives() as collectives:
            mg.model(**list_inputs(model, 3, 7))
        found[model] = dict(collectives.counts)
    return found


@pytest.mark.long
def test_megatron_sends_two_sums_per_block(tmp_path: Any):
    for model in SENT:
        graph_of(model).export(tmp_path / model)
    for found in cluster.run(sent_by, 2, str(tmp_path)):
        assert found == SENT


@pytest.mark.long
def test_heads_that_do_not_divide_are_named():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=3,
        intermediate_size=32, vocab_size=20, use_cache=False,
    )  # fmt: skip
    ids = torch.zeros(2, 5, dtype=torch.int64)
    mg = MaseGraph(LlamaForCausalLM(config).eval(), dummy_in={"input_ids": ids})
    with pytest.raises(PlanError, match="has 3 heads, which 2 processes cannot share evenly"):
        megatron_plan(mg, (2,))
    assert megatron_plan(mg, (3,)).parameters
