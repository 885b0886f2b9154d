"""RMSNorms that are written out become modules that compute the same."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from chop import MaseGraph, passes
from chop.nn.quantized import QuantRMSNorm

from .conftest import with_metadata

WIDTH = 6


class Norm(nn.Module):
    """A norm that `compute` writes out, of x, weight and eps."""

    def __init__(self, compute, **members):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.compute = compute
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, x):
        return self.compute(x, self.weight)


class Stored(Norm):
    """A norm whose weight is a buffer."""

    def __init__(self, compute):
        super().__init__(compute)
        weight = self.weight.detach()
        del self.weight
        self.register_buffer("weight", weight)


class Model(nn.Module):
    """A layer, a norm once or twice, and a layer."""

    def __init__(self, norm, times=1):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, WIDTH), norm, nn.Linear(WIDTH, 3)
        self.times = times

    def forward(self, x):
        x = self.up(x)
        for _ in range(self.times):
            x = self.norm(x)
        return self.down(x)


def rows(x):
    return x.pow(2).mean(-1, keepdim=True)


FORMS = {
    "llama": lambda x, w: w * (x * torch.rsqrt(rows(x.float()) + 1e-6)).to(x.dtype),
    "method": lambda x, w: x.mul((1e-5 + rows(x)).rsqrt()) * w,
    "square": lambda x, w: torch.rsqrt(x.square().mean(dim=[-1], keepdim=True) + 0.1) * x * w,
    "product": lambda x, w: w * (x * torch.rsqrt(torch.mean(x * x, -1, True) + 1e-3)),
    "names": lambda x, w: w * (x * torch.rsqrt(torch.mean(input=x * x, dim=-1, keepdim=True) + 1)),
}
OTHERS = {
    "offset": lambda x, w: (1 + w) * (x * torch.rsqrt(rows(x) + 1e-6)),
    "sum": lambda x, w: w * (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)),
    "cube": lambda x, w: w * (x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True).abs() + 1e-6)),
    "axis": lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6)),
    "other": lambda x, w: w * (x * torch.rsqrt(rows(x + 1) + 1e-6)),
    "no_eps": lambda x, w: w * (x * torch.rsqrt(rows(x))),
}


def raised(model, dtype=torch.float32):
    example = {"x": torch.randn(5, 3, 4, dtype=dtype)}
    return with_metadata(MaseGraph(model.to(dtype).eval(), dummy_in=example)), example["x"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_written_norm_becomes_a_module(form):
    model = Model(Norm(FORMS[form]))
    mg, x = raised(model)
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info == {"fused": ["norm"], "skipped": {}}
    assert [n.target for n in fused.nodes if n.op == "call_module"] == ["up", "norm", "down"]
    assert isinstance(fused.model.norm, nn.RMSNorm)
    assert fused.model.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(fused.model(x), model(x))
    fused.model(x).sum().backward()
    assert fused.model.norm.weight.grad is not None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", OTHERS)
def test_what_computes_something_else_stays(form):
    mg, _ = raised(Model(Norm(OTHERS[form])))
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info == {"fused": [], "skipped": {}}
    assert fused.diff(mg) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("norm", "dtype", "reason"),
    [
        (Norm(FORMS["llama"]), torch.bfloat16, "a different dtype"),
        (
            Norm(FORMS["llama"], other=nn.Parameter(torch.ones(3))),
            torch.float32,
            "shares its",
        ),
        (Stored(FORMS["llama"]), torch.float32, "not a parameter"),
    ],
    ids=("dtype", "member", "buffer"),
)
def test_norms_that_stay_are_told(norm, dtype, reason):
    mg, _ = raised(Model(norm), dtype)
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info["fused"] == [] and fused.diff(mg) == []
    assert reason in info["skipped"]["norm"]


def test_a_norm_that_is_called_twice_is_one_module():
    model = Model(Norm(FORMS["llama"]), times=2)
    mg, x = raised(model)
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info["fused"] == ["norm", "norm"]
    torch.testing.assert_close(fused.model(x), model(x))


def test_a_model_that_is_a_norm_stays():
    mg = with_metadata(
        MaseGraph(Norm(FORMS["llama"]).eval(), dummy_in={"x": torch.randn(3, WIDTH)})
    )
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info["fused"] == [] and fused.diff(mg) == []
    assert "shares its" in next(iter(info["skipped"].values()))


def test_norms_that_share_a_weight_and_have_their_own_eps_keep_it():
    first, second = Norm(FORMS["llama"]), Norm(FORMS["square"])
    second.weight = first.weight
    model = Model(nn.Sequential(first, second))
    mg, x = raised(model)
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info["fused"] == ["norm.0"] and "another eps" in info["skipped"]["norm.0"]
    torch.testing.assert_close(fused.model(x), model(x))


def test_a_subclass_that_writes_a_norm_out_has_the_eps_that_it_computes_with():
    class Own(nn.RMSNorm):
        def forward(self, x):
            return FORMS["square"](x, self.weight)

    model = Model(Own(WIDTH, eps=1e-6))
    mg, x = raised(model)
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    assert info["fused"] == ["norm"]
    assert type(fused.model.norm) is nn.RMSNorm and fused.model.norm.eps == 0.1
    torch.testing.assert_close(fused.model(x), model(x))


@pytest.mark.long
def test_a_decoder_is_fused_and_quantized_with_its_norms():
    shape = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=20, num_hidden_layers=1, **shape, use_cache=False)
    model = LlamaForCausalLM(config).eval()
    batch = {"input_ids": torch.randint(20, (3, 5)), "attention_mask": torch.ones(3, 5).long()}
    mg = with_metadata(MaseGraph(model, dummy_in=batch))
    fused, info = passes.fuse_rms_norm_transform_pass(mg)
    layer = "model.layers.0."
    norms = [f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"]
    assert info == {"fused": norms, "skipped": {}}
    torch.testing.assert_close(fused.model(**batch).logits, model(**batch).logits)
    rules = {"by": "type", "rms_norm": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}
    quantized, _ = passes.quantize_transform_pass(fused, rules)
    assert all(isinstance(quantized.model.get_submodule(path), QuantRMSNorm) for path in norms)
