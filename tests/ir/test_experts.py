"""Mixtures of experts as graphs, and as folders of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from chop import ChopConfig, MaseGraph, passes
from chop.captured.layers.experts import matrices_by_parameter
from chop.errors import ConfigError
from chop.formats import parse_format_string
from chop.nn.packed import PackedOperator
from tests.experts import MIXTURES, mixture, text, with_layers
from tests.nn.test_expert_linear import CodesRead

FOUR_BITS = {"config": {"weight": {"name": "mxint", "width": 4}}}
ALL_LAYERS = {"by": "type", **dict.fromkeys(("linear", "embedding", "expert_linear"), FOUR_BITS)}
LARGER = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "vocab_size": 256,
    "head_dim": 32,
}
load = transformers.AutoModelForCausalLM.from_pretrained


@torch.no_grad()
def rounded(model: Any) -> Any:
    """The float model with its weights rounded along their inputs; the independent reference."""
    number_format = parse_format_string("mxint:width=4")
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data = number_format.round(module.weight)
        for name in matrices_by_parameter(module):
            x = getattr(module, name)
            along_inputs = x.mT.contiguous() if module.is_transposed else x
            y = number_format.round(along_inputs)
            x.data = y.mT.contiguous() if module.is_transposed else y
    return model


def packed_share(model: nn.Module) -> float:
    layers = [x for x in model.modules() if isinstance(x, PackedOperator)]
    stored = sum(shape.numel() for x in layers for shape in x.packed_shapes.values())
    floats = sum(x.numel() for x in model.parameters())
    return stored / (stored + floats)


def answer(model: Any) -> list[int]:
    tokens: list[int] = model.generate(text(1), max_new_tokens=4, do_sample=False)[0].tolist()
    return tokens


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["Mixtral", "Olmoe", "Qwen3Moe", "GptOss"])
@torch.no_grad()
def test_a_loaded_mixture_is_packed_and_saved(name: str, tmp_path: Path) -> None:
    model = mixture(name, **LARGER)
    model.save_pretrained(tmp_path / "float")
    small = load(tmp_path / "float", quantization_config=ChopConfig("mxint4"), dtype=torch.float32)
    assert packed_share(small) > 0.99
    reference = rounded(load(tmp_path / "float", dtype=torch.float32))
    y = small(text()).logits
    torch.testing.assert_close(y, reference(text()).logits, rtol=1e-3, atol=1e-3)
    small.save_pretrained(tmp_path / "packed")
    again = load(tmp_path / "packed")
    assert torch.equal(again(text()).logits, y)
    assert answer(again) == answer(small) == answer(reference)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.sampled(3)
@torch.no_grad()
def test_logits_are_those_of_rounded_weights_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, x = mixture(name), text()
    model.save_pretrained(tmp_path)
    small = load(tmp_path, quantization_config=ChopConfig("mxint4"), dtype=torch.float32)
    expected = with_layers(rounded(model))(x).logits
    assert torch.equal(small(x).logits, expected)
    half = load(tmp_path, quantization_config=ChopConfig("mxint4"), dtype=torch.bfloat16)
    layers = {path: x for path, x in half.named_modules() if isinstance(x, PackedOperator)}
    assert sum(path.endswith(("experts.gate_up", "experts.down")) for path in layers) == 2
    for path, layer in layers.items():  # rounded as they are stored, not as bfloat16
        assert torch.equal(layer.weight, model.get_submodule(path).weight.bfloat16()), path
    torch.testing.assert_close(half(x).logits.float(), expected, rtol=0.1, atol=0.2)


@torch.no_grad()
def test_a_token_reads_the_codes_of_its_experts(tmp_path: Path) -> None:
    mixture("Mixtral").save_pretrained(tmp_path)
    small = load(tmp_path, quantization_config=ChopConfig("mxint4"), dtype=torch.float32)
    experts = small.model.layers[0].mlp.experts
    size = experts.gate_up.weight_codes.numel() + experts.down.weight_codes.numel()
    hits: list[int] = []
    experts.register_forward_pre_hook(lambda _, given: hits.append(len(given[1].unique())))
    small(text(1, 1))  # what is decoded once is decoded now
    with CodesRead() as read:
        small(text(1, 1))
    assert hits == [2, 2] and read.bytes == size * 2 // 4


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@torch.no_grad()
def test_no_implementation_changes_a_packed_model(implementation: str, tmp_path: Path) -> None:
    mixture("Qwen3Moe").save_pretrained(tmp_path)
    settings = {"quantization_config": ChopConfig("mxint4"), "dtype": torch.float32}
    usual = load(tmp_path, **settings)(text()).logits
    other = load(tmp_path, experts_implementation=implementation, **settings)
    assert torch.equal(other(text()).logits, usual)


def test_a_choice_of_layers_takes_both_matrices_or_none(tmp_path: Path) -> None:
    mixture("Mixtral").save_pretrained(tmp_path)
    floats = load(tmp_path, quantization_config=ChopConfig("mxint4", skip=["mlp.experts"]))
    assert len(matrices_by_parameter(floats.model.layers[0].mlp.experts)) == 2
    floats = load(tmp_path, quantization_config=ChopConfig("mxint4", operators="linear"))
    assert len(matrices_by_parameter(floats.model.layers[0].mlp.experts)) == 2
    only = load(tmp_path, quantization_config=ChopConfig("mxint4", operators="expert_linear"))
    assert sum(isinstance(x, PackedOperator) for x in only.modules()) == 2
    with pytest.raises(ConfigError, match=r"one of the two layers of the experts '.*mlp\.experts'"):
        load(tmp_path, quantization_config=ChopConfig("mxint4", skip=["experts.down"]))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = mixture("Mixtral")
    model.model.layers[0].mlp.experts.down_proj.data[1, 2, 3] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="experts.down' has weights that are not finite"):
        load(tmp_path, quantization_config=ChopConfig("mxint4"))


@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
@pytest.mark.sampled(1)
@torch.no_grad()
def test_a_graph_is_quantized_packed_and_stored(name: str, tmp_path: Path) -> None:
    model, x = mixture(name), text()
    mg = MaseGraph(model, dummy_in={"input_ids": x})
    named = [str(node.target) for node in mg.nodes if mg.operator(node).name == "expert_linear"]
    assert [path.rpartition("experts.")[2] for path in named] == ["gate_up", "down"]
    assert list(mg.model.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(mg.model(input_ids=x)["logits"], model(x).logits)
    quantized, _ = passes.quantize_transform_pass(mg, ALL_LAYERS)
    packed, _ = passes.pack_transform_pass(quantized, {"silent": True, "exact": True})
    y = packed.model(input_ids=x)["logits"]
    assert torch.equal(y, quantized.model(input_ids=x)["logits"])
    for graph in (mg, quantized, packed):
        graph.export(tmp_path / "graph")
        found = MaseGraph.from_checkpoint(tmp_path / "graph")
        expected = graph.model(input_ids=x)["logits"]
        assert torch.equal(found.model(input_ids=x)["logits"], expected)
        assert list(found.model.state_dict()) == list(graph.model.state_dict())
    small = packed.to_module()
    assert torch.equal(small(x).logits, y)
    small.save_pretrained(tmp_path / "folder")
    assert torch.equal(load(tmp_path / "folder")(x).logits, y)


@pytest.mark.parametrize("number_format", ["mxint4", "ternary", "mxfp:width=6:exponent_width=3"])
@pytest.mark.long
@torch.no_grad()
def test_a_graph_of_a_packed_mixture_takes_texts_of_any_size(
    number_format: str, tmp_path: Path
) -> None:
    mixture("Mixtral").save_pretrained(tmp_path)
    small = load(tmp_path, quantization_config=ChopConfig(number_format), dtype=torch.float32)
    mg = MaseGraph(small)
    for rows, length in ((2, 7), (1, 5), (3, 1)):
        x = text(rows, length)
        given = {"input_ids": x, "attention_mask": torch.ones_like(x)}
        torch.testing.assert_close(mg.model(**given).logits, small(**given).logits)


@pytest.fixture(scope="module")
def mixtral() -> MaseGraph:
    return MaseGraph(mixture("Mixtral"), dummy_in={"input_ids": text()})


@pytest.mark.long
def test_half_packed_experts_are_not_saved_as_a_folder(mixtral: MaseGraph, tmp_path: Path) -> None:
    rules = {"by": "regex_name", ".*experts_down": FOUR_BITS}
    quantized, _ = passes.quantize_transform_pass(mixtral, rules)
    packed, _ = passes.pack_transform_pass(quantized, {"silent": True})
    with pytest.raises(ConfigError, match="one of the two layers of the experts .* is packed"):
        packed.to_module().save_pretrained(tmp_path)


@pytest.mark.long
def test_outputs_of_experts_are_not_pruned_by_channel(mixtral: MaseGraph) -> None:
    channels = {"sparsity": 0.5, "granularity": "channel", "method": "l1-norm"}
    _, info = passes.prune_transform_pass(mixtral, {"weight": channels})
    assert "it has outputs of several experts" in str(info)
