"""Roundings that are learned by the error of a block's output."""

import contextlib
import functools

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.actions.compress.ptq import method_title, quantize_after_training
from chop.errors import ConfigError
from chop.formats import parse_format_string
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantExpertLinear, QuantizedOperator
from chop.quantization.rounding import learned as learned_rounding
from tests.experts import mixture
from tests.networks import Made
from tests.subcases import subcases

from .conftest import with_metadata

FORMATS = (
    "group_integer:width=3:group_size=16",
    "group_affine:width=3:group_size=16",
    "mxint:width=3:block_size=16",
    "mxfp:width=4:block_size=16",
    "nvfp4",
    "scale_integer:width=3:granularity=group:group_size=16",
)
BLOCKS = ("model.layers.0", "model.layers.1")


def texts(seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 100, (2, 8, 8), generator=generator)
    return [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in tokens]


@functools.cache
def decoder(dtype=torch.float32):
    import transformers as t

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 100, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True}
    model = t.LlamaForCausalLM(t.LlamaConfig(**sizes, **heads)).eval()
    with torch.no_grad():  # larger than they are drawn, so that blocks do more than hand on
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter *= 3
    model = model.to(dtype)
    return model, with_metadata(MaseGraph(model, hf_input_names=[*texts()[0]]))


def quantized(mg, weight, **operators):
    rule = {"config": {"weight": parse_format_string(weight)}}
    operators = operators or {"linear": rule}
    return passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(operators, rule)})[0]


def learned(mg, weight, batches=None, **settings):
    settings = {"steps": 20, "row_weights": "uniform"} | settings
    batches = texts() if batches is None else batches
    return passes.learned_rounding_transform_pass(
        quantized(mg, weight), {"batches": batches, **settings}
    )


def outputs(model, batches):
    """What each block gives on all batches, by path."""
    seen = {}
    hooks = [
        model.get_submodule(f"{path}.mlp.down_proj").register_forward_hook(
            lambda _, args, y, path=path: seen.setdefault(path, []).append(y)
        )
        for path in BLOCKS
    ]
    with torch.no_grad():
        logits = torch.cat([model(**batch).logits for batch in batches])
    for hook in hooks:
        hook.remove()
    return {path: torch.cat(found) for path, found in seen.items()} | {"logits": logits}


@pytest.mark.parametrize("start", ["nearest", "gptq"])
@pytest.mark.parametrize("weight", FORMATS)
@pytest.mark.long
def test_blocks_come_nearer_to_float(weight, start):
    model, mg = decoder()
    nearest = quantized(mg, weight)
    before = {name: x.clone() for name, x in nearest.model.state_dict().items()}
    if start == "gptq" and weight == "nvfp4":
        pytest.skip("its scales may change when GPTQ's weights are rounded")
    better, info = passes.learned_rounding_transform_pass(
        nearest, {"batches": texts(), "steps": 20, "start": start, "row_weights": "uniform"}
    )
    assert list(info["blocks"]) == [*BLOCKS, "last"] and info["skipped"] == {}
    assert all(row["after"] <= row["before"] for row in info["blocks"].values())
    gain = 0.9 if start == "nearest" else 1.001  # GPTQ may have left nothing to a few steps
    assert info["blocks"][BLOCKS[0]]["after"] < gain * info["blocks"][BLOCKS[0]]["before"]
    assert all(torch.equal(before[name], x) for name, x in nearest.model.state_dict().items())
    exact, rounded, found = (outputs(m, texts()) for m in (model, nearest.model, better.model))
    errors = [(x["logits"] - exact["logits"]).square().mean() for x in (rounded, found)]
    assert errors[1] < errors[0]
    told = info["blocks"]["last"]["after"]
    share = errors[1] / exact["logits"].square().mean()
    assert share.item() == pytest.approx(told, rel=1e-3)
    packed, _ = passes.pack_transform_pass(better, {"silent": True})
    assert any(isinstance(x, PackedOperator) for x in packed.model.modules())
    for path, layer in better.modules.items():
        if path.endswith("_proj"):
            assert layer.spec == nearest.modules[path].spec
            codes = packed.modules[path].encoded("weight")
            assert torch.equal(
                layer.spec.weight.decode(codes), layer.quantize("weight", layer.weight)
            )


@pytest.mark.long
def test_the_same_seed_gives_the_same_codes():
    _, mg = decoder()
    first, second, other = (
        learned(mg, "mxint:width=3", seed=seed)[0].model.state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    assert any(not torch.equal(x, other[name]) for name, x in first.items())


@pytest.mark.parametrize("start", ["nearest", "gptq"])
@pytest.mark.long
def test_a_weight_is_rounded_once_and_not_on_each_batch(start, monkeypatch):
    counted, plain = [], QuantizedOperator._round

    def count(self, operand, x, mask):
        counted.extend([operand] if not self.spec.weight.is_identity else [])
        return plain(self, operand, x, mask)

    monkeypatch.setattr(QuantizedOperator, "_round", count)
    _, mg = decoder()
    rows = [{name: x[i : i + 2] for name, x in b.items()} for b in texts() for i in (0, 2, 4, 6)]
    settings = {"steps": 1, "start": start, "batches": rows}
    once, _ = learned(mg, FORMATS[1], **settings)
    often = counted.copy()
    counted.clear()
    monkeypatch.setattr(learned_rounding, "_rounded_once", contextlib.nullcontext)
    plainly, _ = learned(mg, FORMATS[1], **settings)
    assert often.count("weight") < counted.count("weight") / 2
    for name, value in plainly.model.state_dict().items():
        assert torch.equal(once.model.state_dict()[name], value)


@pytest.mark.long
def test_padding_does_not_count():
    _, mg = decoder()
    mask = torch.ones(8, 8, dtype=torch.long)
    mask[:, :4] = 0
    padded = [x | {"attention_mask": mask} for x in texts()]
    others = []
    for batch, other in zip(padded, texts(7), strict=True):
        tokens = torch.where(mask > 0, batch["input_ids"], other["input_ids"])
        others.append({"input_ids": tokens, "attention_mask": mask})
    _, info = learned(mg, "mxint:width=3", padded)
    _, told = learned(mg, "mxint:width=3", others)
    for path, row in info["blocks"].items():
        assert row["before"] == pytest.approx(told["blocks"][path]["before"], rel=1e-4)
        assert row["after"] == pytest.approx(told["blocks"][path]["after"], rel=0.1)


def test_rows_can_count_by_gradients():
    _, mg = decoder()
    _, info = learned(mg, "mxint:width=3", row_weights="gradient", steps=10)
    _, uniform = learned(mg, "mxint:width=3", steps=1)
    assert all(row["after"] <= row["before"] for row in info["blocks"].values())
    assert info["blocks"][BLOCKS[0]]["after"] < info["blocks"][BLOCKS[0]]["before"]
    assert info["blocks"][BLOCKS[0]]["before"] != uniform["blocks"][BLOCKS[0]]["before"]


@pytest.mark.long
@subcases("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype):
    _, mg = decoder(dtype)
    better, info = learned(mg, "mxint:width=3")
    assert info["blocks"][BLOCKS[0]]["after"] < 0.95 * info["blocks"][BLOCKS[0]]["before"]
    assert {x.dtype for x in better.model.state_dict().values()} == {dtype}


@functools.cache
def net():
    torch.manual_seed(0)
    model = Made(
        lambda m, x: m.fc2(m.fc1(m.act(m.conv(x)).flatten(1)).relu()),
        conv=nn.Conv2d(2, 4, 3, padding=1, groups=2),
        act=nn.ReLU(inplace=True),
        fc1=nn.Linear(64, 16),
        fc2=nn.Linear(16, 5, bias=False),
    )
    return with_metadata(MaseGraph(model.eval(), dummy_in={"x": images(3)}))


def images(rows, seed=2):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    return (torch.randn(rows, 4, generator=generator) @ mix).view(rows, 2, 4, 4)


RULES = {"linear": {}, "conv2d": {}}


def test_layers_without_blocks_are_learned_one_by_one():
    mg = quantized(net(), "mxint:width=3:block_size=9", **RULES)
    batches = [{"x": x} for x in images(40).split(10)]
    settings = {"batches": batches, "steps": 40}
    better, info = passes.learned_rounding_transform_pass(mg, settings)
    assert list(info["blocks"]) == ["conv", "fc1", "fc2"] and info["skipped"] == {}
    assert all(row["after"] <= row["before"] for row in info["blocks"].values())
    assert info["blocks"]["fc1"]["after"] < 0.7 * info["blocks"]["fc1"]["before"]
    x = images(50, seed=9)
    exact = net().model(x)
    errors = [(graph.model(x) - exact).square().mean() for graph in (better, mg)]
    assert errors[0] < errors[1]


def test_masked_weights_stay():
    mg = quantized(net(), "mxint:width=3:block_size=9", **RULES)
    mask = torch.rand(mg.modules["fc1"].weight.shape) > 0.5
    mg.modules["fc1"].register_buffer("weight_mask", mask)
    batches = [{"x": x} for x in images(40).split(10)]
    better, _ = passes.learned_rounding_transform_pass(mg, {"batches": batches, "steps": 20})
    new, old = (graph.modules["fc1"].weight for graph in (better, mg))
    assert torch.equal(new[~mask], old[~mask]) and not torch.equal(new, old)


def test_refusals():
    _, mg = decoder()
    corrected, _ = passes.gptq_transform_pass(quantized(mg, "mxint4"), {"batches": texts()})
    run = passes.learned_rounding_transform_pass
    with pytest.raises(ConfigError, match="start = 'gptq'"):
        run(corrected, {"batches": texts()})
    broken = [{"x": images(4).index_fill(0, torch.tensor([2]), torch.nan)}]
    with pytest.raises(ConfigError, match="row 2 of batch 0 causes NaN"):
        run(quantized(net(), "mxint4"), {"batches": broken, "row_weights": "uniform"})
    _, info = run(quantized(mg, "ternary"), {"batches": texts()})
    assert info["blocks"] == {}
    assert "are not equally spaced" in next(iter(info["skipped"].values()))


def mixed(name, **layers):
    mg = MaseGraph(mixture(name, **layers), hf_input_names=["input_ids", "attention_mask"])
    ids = torch.randint(2, 60, (4, 24), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    weight = "mxint:width=3:block_size=8"
    quantizers = quantized(with_metadata(mg), weight, linear=None, expert_linear=None)
    return quantizers, [{"input_ids": ids, "attention_mask": mask}]


def layers_of_experts(mg):
    return {
        str(node.target): (node.name, mg.get_module(node))
        for node in mg.nodes
        if isinstance(mg.get_module(node), QuantExpertLinear)
    }


@pytest.mark.parametrize("start", ["nearest", "gptq"])
@pytest.mark.parametrize("name", ["Mixtral", "Olmoe", "Qwen3Moe", "GptOss"])
@pytest.mark.long
def test_experts_are_learned_by_the_tokens_that_they_saw(name, start):
    mg, batches = mixed(name, num_hidden_layers=2)
    settings = {"batches": batches, "steps": 4, "start": start}
    better, info = passes.learned_rounding_transform_pass(mg, settings)
    assert list(info["blocks"])[:2] == [*BLOCKS]
    assert any(row["after"] < row["before"] for row in info["blocks"].values())
    assert info["skipped"] and all(
        ("fewer than its" in why and why.endswith("rounded to nearest")) or "as GPTQ" in why
        for why in info["skipped"].values()
    )
    changed = 0
    for path, (node, layer) in layers_of_experts(mg).items():
        new, old = (
            x.quantize("weight", x.weight).view(layer.num_experts, -1)
            for x in (better.modules[path], layer)
        )
        for number in range(layer.num_experts):
            reason = info["skipped"].get(f"{node}[{number}]", "")
            is_same = torch.equal(new[number], old[number])
            assert is_same or not reason.endswith("rounded to nearest")
            changed += not is_same
    assert changed > 0


@pytest.mark.long
def test_a_mixture_that_cannot_be_cut_is_learned_layer_by_layer():
    mg, batches = mixed("DeepseekV3", num_hidden_layers=2)  # its attention writes in place
    _, info = passes.learned_rounding_transform_pass(mg, {"batches": batches, "steps": 1})
    paths = layers_of_experts(mg)
    assert paths.keys() <= info["blocks"].keys() and not info["blocks"].keys() & {*BLOCKS}


def test_jobs_apply_it_in_place_of_gptq(monkeypatch):
    asked = []
    for name in ("gptq", "learned_rounding"):
        monkeypatch.setattr(
            passes,
            f"{name}_transform_pass",
            lambda mg, settings, inplace, name=name: (
                asked.append((name, settings)),
                (mg, {"skipped": {}}),
            )[1],
        )
    monkeypatch.setattr("chop.actions.compress.ptq.calibration_batches", lambda *_, **__: texts())

    class Workload:
        train = None

    for methods in (("learned_rounding",), ("learned_rounding", "gptq")):
        mxint = parse_format_string("mxint4")
        quantize_after_training(decoder()[1], mxint, ("linear",), Workload(), 4, methods)
    assert [(name, settings["start"]) for name, settings in asked] == [
        ("learned_rounding", "nearest"),
        ("learned_rounding", "gptq"),
    ]
    assert method_title(("learned_rounding", "gptq")) == "GPTQ+learned rounding"
