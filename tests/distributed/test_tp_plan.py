"""The mapping for transformers: styles, what is refused, and equal outputs there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.distributed import ShardingPlan
from chop.distributed.builtin_plans import megatron_plan
from chop.distributed.tp_plan import tp_plan
from chop.errors import PlanError
from tests.distributed import cluster
from tests.distributed.graphs import MODELS, graph_of

FIRST = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1")
BERT_FIRST = ("self.query", "self.key", "self.value", "intermediate.dense")
LAST = ("o_proj", "out_proj", "down_proj", "fc2", "output.dense")


def ends(path: str, names: Iterable[str]) -> bool:
    return path.rpartition(".")[0].endswith(tuple(names))


def columns_and_rows(mg: MaseGraph, gathered: Iterable[str] = ()) -> ShardingPlan:
    """Megatron's layout by the names of layers; those that are gathered are read whole."""
    parameters = {}
    for path, tensor in mg.model.named_parameters():
        if ends(path, FIRST + BERT_FIRST):
            parameters[path] = ("S0",)
        elif ends(path, LAST) and tensor.ndim == 2:
            parameters[path] = ("S1",)
    reads: dict[str, dict[str, tuple[str, ...]]] = {}
    for node in mg.nodes:
        if str(node.target).endswith(tuple(gathered)) and gathered:
            for user in node.users:
                reads.setdefault(user.name, {})[node.name] = ("R",)
    return ShardingPlan((2,), parameters, reads)


def test_a_layer_of_llama_has_the_styles_that_transformers_has_for_it():
    from transformers import LlamaConfig

    mg = graph_of("llama")
    found = tp_plan(mg, columns_and_rows(mg))
    own = {f"model.{path}": style for path, style in LlamaConfig.base_model_tp_plan.items()}
    assert {path: found[path] for path in own} == own
    assert {path: found[path] for path in found.keys() - own} == {
        "model.embed_tokens": "replicate",
        "lm_head": "replicate",
    }


def test_what_is_read_whole_is_gathered_and_split_again():
    mg = graph_of("opt")
    found = tp_plan(mg, columns_and_rows(mg, FIRST[:3]))
    attention = "model.decoder.layers.*.self_attn"
    assert found[f"{attention}.q_proj"] == "colwise_gather_output"
    assert found[f"{attention}.out_proj"] == "rowwise_split_input"
    assert found["model.decoder.layers.*.fc1"] == "colwise"
    assert found["model.decoder.layers.*.fc2"] == "rowwise"


def test_a_view_that_takes_missing_heads_for_tokens_is_refused():
    mg = graph_of("opt")
    with pytest.raises(
        PlanError, match=r"layers\.0\.self_attn\.q_proj\.weight.*'view_1' needs"
    ) as e:
        tp_plan(mg, columns_and_rows(mg))
    assert "\n" not in str(e.value)


class Net(nn.Module):
    """Two layers, and something in between."""

    def __init__(self, between):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.between = between

    def forward(self, x):
        return self.blocks[1](self.between(self.blocks[0](self.table(x))))


def net(between: nn.Module) -> MaseGraph:
    ids = torch.zeros(2, 3, dtype=torch.long)
    return MaseGraph(Net(between).eval(), dummy_in={"x": ids})


PAIR = {"blocks.0.weight": ("S0",), "blocks.0.bias": ("S0",), "blocks.1.weight": ("S1",)}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (PAIR | {"blocks.1.bias": ("S0",)}, r"'blocks.1.bias' has the placement S0, expected R"),
        (PAIR | {"between.weight": ("S0",)}, r"'between.weight' has .* S0, but transformers"),
        (PAIR, r"'blocks.1.weight': transformers shards all of 'blocks.\*' alike"),
        (dict(list(PAIR.items())[:2]), r"'blocks.0.weight': node 'blocks_1' needs all"),
        (dict(list(PAIR.items())[:1]), r"'blocks.0.bias' has the placement R, expected S0"),
    ],
)
@pytest.mark.sampled(3)
def test_what_no_style_says_is_refused_by_name(parameters, message):
    mg = net(nn.LayerNorm(8) if "between.weight" in message else nn.GELU())
    with pytest.raises(PlanError, match=message):
        tp_plan(mg, ShardingPlan((2,), parameters))


def test_a_norm_over_parts_is_refused_and_gathered_it_is_not():
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)))
    parameters = {"0.weight": ("S0",), "0.bias": ("S0",), "2.weight": ("S1",)}
    names = [node.name for node in mg.nodes]
    with pytest.raises(PlanError, match=r"'0.weight': node '\w+' needs all of this layer's"):
        tp_plan(mg, ShardingPlan((2,), parameters))
    first, norm = names[1:3]
    gathered = tp_plan(mg, ShardingPlan((2,), parameters, {norm: {first: ("R",)}}))
    assert gathered == {"0": "colwise_gather_output", "2": "rowwise_split_input"}


def test_embeddings_and_the_axis_of_a_mesh():
    mg = net(nn.GELU())
    table: Mapping[str, tuple[str, ...]] = {"table.weight": ("R", "S1")}
    assert tp_plan(mg, ShardingPlan((1, 2), table)) == {
        "table": "embedding_colwise",
        "blocks.*": "replicate",
    }
    with pytest.raises(PlanError, match="mesh 2x2: .* several processes on one axis"):
        tp_plan(mg, ShardingPlan((2, 2), table))


def in_transformers(folder: str, plans: dict[str, dict[str, str]]) -> dict[str, tuple]:
    """Largest difference from one process, by model, and the elements of parameters here."""
    import transformers
    from transformers.distributed import DistributedConfig

    ids = torch.arange(24).reshape(3, 8) * 7 % 96
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    found = {}
    for name, plan in plans.items():
        kind = {
            "llama": transformers.LlamaForCausalLM,
            "bert": transformers.BertForSequenceClassification,
            "opt": transformers.OPTForCausalLM,
        }[name]
        whole = kind.from_pretrained(f"{folder}/{name}")
        config = DistributedConfig(tp_plan=plan)
        model = kind.from_pretrained(f"{folder}/{name}", distributed_config=config)
        with torch.no_grad():
            outputs = [m(input_ids=ids, attention_mask=mask).logits for m in (whole, model)]
        local = [getattr(p, "_local_tensor", p).numel() for p in model.parameters()]
        scale = float(outputs[0].abs().max())
        found[name] = float((outputs[0] - outputs[1]).abs().max()), scale, sum(local)
    return found


@pytest.mark.long
def test_transformers_runs_the_mappings_with_equal_outputs(tmp_path):
    import transformers

    plans, shares = {}, {}
    for name in ("llama", "bert", "opt"):
        mg = graph_of(name)
        plan = columns_and_rows(mg, FIRST[:3]) if name == "opt" else megatron_plan(mg, (2,))
        plans[name] = tp_plan(mg, plan)
        torch.manual_seed(0)
        MODELS[name](transformers).save_pretrained(tmp_path / name)
        sizes = {path: tensor.numel() for path, tensor in mg.model.named_parameters()}
        shares[name] = sum(n // (1 + (path in plan.parameters)) for path, n in sizes.items())
    for found in cluster.run(in_transformers, 2, str(tmp_path), plans):
        assert found.keys() == plans.keys()
        for name, (difference, scale, local) in found.items():
            assert difference < 1e-5 * max(scale, 1), name
            assert scale > 0.1, name
            assert local == shares[name], name
