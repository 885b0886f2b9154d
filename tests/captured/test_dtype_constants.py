"""`graph.to(dtype)` after capture computes what `model.to(dtype)` does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.capture.inputs import dummy_inputs
from chop.capture.tracer import capture
from chop.captured.module import CapturedModule
from chop.ir.graph import node_metadata

DTYPES = [torch.bfloat16, torch.float16, torch.float64]


class Norm(nn.Module):
    """Computes in float32 and returns to where it came from, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


class NormOfHalves(nn.Module):
    """Casts only where the weights are halves, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class UpcastOfHalves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.dtype in (torch.float16, torch.bfloat16):
            y = y.float()
        return y.softmax(-1).to(x.dtype)


class Masked(nn.Module):
    """Fills with the smallest number of the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.layer(x)
        least = torch.finfo(scores.dtype).min
        mask = torch.full((8, 8), least, dtype=scores.dtype, device=x.device).triu(1)[: x.shape[0]]
        return (scores + mask).softmax(-1, dtype=torch.float32).to(scores.dtype)


class Table(nn.Module):
    """A tensor that is no buffer keeps its precision, and its values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table = torch.linspace(0, 100, 8) / 3

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.sin(self.table).to(x.dtype)


class Dropping(nn.Module):
    """Mode and dtype both change constants here."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.p = Norm(), 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.inner(x), self.p, self.training)
        q = x[None, None].to(self.inner.weight.dtype)
        p = self.p if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=p)


MODELS = {
    "a cast and its return": Norm,
    "a cast of halves": NormOfHalves,
    "an upcast of halves": UpcastOfHalves,
    "a limit": Masked,
    "a constant tensor": Table,
    "a mode": Dropping,
}


def same(captured: CapturedModule, model: nn.Module, x: Tensor) -> None:
    found, expected = captured(x), model(x)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS)
@pytest.mark.sampled(1)
def test_casting_a_graph_is_casting_its_model(kind, recwarn) -> None:
    model, x = kind().eval(), torch.randn(4, 8)
    captured = capture(model, {"x": x})
    same(captured, model, x)
    for dtype in (*DTYPES, torch.float32):
        cast, twin = copy.deepcopy(model).to(dtype), copy.deepcopy(captured).to(dtype)
        for graph in (twin, pickle.loads(pickle.dumps(twin)), copy.deepcopy(twin)):
            same(graph, cast, x.to(dtype))
        assert twin.record.example_inputs["x"].dtype == dtype
        same(twin.float(), copy.deepcopy(cast).float(), x)
    same(captured, model, x)
    torch.manual_seed(0)
    expected = model.half().train()(x.half())
    torch.manual_seed(0)
    assert torch.equal(captured.half().train()(x.half()), expected)
    assert not recwarn.list


def test_a_reloaded_graph_follows_too(tmp_path) -> None:
    model, x = nn.Sequential(Norm(), Masked()).eval(), torch.randn(4, 8)
    mg = MaseGraph(model, dummy_in={"input": x})
    mg.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    same(again.model.bfloat16(), copy.deepcopy(model).bfloat16(), x.bfloat16())
    again.export(tmp_path / "half")
    third = MaseGraph.from_checkpoint(tmp_path / "half").model
    same(third.double(), copy.deepcopy(model).bfloat16().double(), x.double())


def test_metadata_and_passes_see_the_new_dtype() -> None:
    mg = MaseGraph(nn.Sequential(nn.Linear(8, 8), Norm()), dummy_in={"input": torch.ones(4, 8)})
    mg.model.bfloat16()
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    results = {n.name: node_metadata(n).common.results for n in mg.nodes if n.op == "call_method"}
    assert {info["data_out_0"].torch_dtype for name, info in results.items() if "to" in name} == {
        torch.float32,
        torch.bfloat16,
    }


def test_where_it_is_not_known_what_follows_the_cast_says_so() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                x = x.abs() * 2 + 1
            return (x.to(torch.float32) * self.weight).to(x.dtype)

    captured = capture(Branching(), {"x": torch.ones(4, 8)})
    assert captured.record.follows_dtype is None
    captured.to("cpu").float()
    with pytest.warns(
        UserWarning, match="constants of torch.float32, .*unknown which of them follow"
    ):
        captured.half()


def hugging_face_models() -> dict[str, nn.Module]:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
        ViTConfig,
        ViTForImageClassification,
    )

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    text = {"vocab_size": 30, "bos_token_id": 1, "eos_token_id": 2}
    eager = {"attn_implementation": "eager"}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 30}
    return {
        "llama": LlamaForCausalLM(LlamaConfig(**sizes, **text)),
        "eager llama": LlamaForCausalLM(LlamaConfig(**sizes, **text, **eager)),
        "t5": T5ForConditionalGeneration(T5Config(**t5, decoder_start_token_id=0)),
        "gpt2": GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=20, **text)),
        "vit": ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes)),
    }


NAMES = ["llama", "eager llama", "t5", "gpt2", "vit"]


@pytest.fixture(scope="module")
def zoo() -> dict[str, nn.Module]:
    return hugging_face_models()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long
def test_transformers_are_cast_as_their_models(name, zoo, recwarn) -> None:
    model = zoo[name].eval()
    captured, inputs = capture(model), dummy_inputs(model)
    if "attention_mask" in inputs:
        inputs["attention_mask"][0, -3:] = 0
    for dtype in (torch.bfloat16, torch.float16):
        cast, twin = copy.deepcopy(model).to(dtype), copy.deepcopy(captured).to(dtype)
        given = {n: x.to(dtype) if x.is_floating_point() else x for n, x in inputs.items()}
        with torch.no_grad():
            expected, found = cast(**given)[0], twin(**given)[0]
        assert found.dtype == expected.dtype == dtype
        assert torch.equal(found, expected)
    assert not recwarn.list
