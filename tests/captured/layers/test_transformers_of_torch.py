"""torch's own transformer and attention are captured as projections and attention calls."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.captured.layers.attention import ProjectedAttention
from chop.captured.leaves import tensors_in

WIDTH = 8
MXINT8 = {"by": "type", "linear": {"config": {"weight": {"name": "mxint", "width": 8}}}}


def encoder_layer(**settings: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, **{"batch_first": True, **settings})


def decoder_layer() -> nn.TransformerDecoderLayer:
    return nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True)


class Attends(nn.Module):
    """Calls an `nn.MultiheadAttention` in one of its many ways."""

    def __init__(self, call: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, **settings)
        self.call = call or {}

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **masks: Tensor
    ) -> Any:
        key = query if key is None else key
        value = key if value is None else value
        return self.attention(query, key, value, **masks, **self.call)


class HandsOn(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class Pooling(nn.Module):
    """As CLIP pools: it calls the function with the weights of its own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.c = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        biases = torch.cat([self.q.bias, self.k.bias, self.v.bias])
        weights = {f"{n}_proj_weight": getattr(self, n).weight for n in "qkv"}
        settings = (WIDTH, 2, None, biases, None, None, False, 0.0, self.c.weight, self.c.bias)
        y, _ = F.multi_head_attention_forward(
            *(x[:1], x, x, *settings), use_separate_proj_weight=True, need_weights=False, **weights
        )
        return y


def tokens(batch: int, time: int, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(batch * time)
    return torch.randn(batch, time, width, generator=generator).to(dtype)


def padding(batch: int, time: int) -> Tensor:
    mask = torch.zeros(batch, time, dtype=torch.bool)
    mask[0, time - 2 :] = True
    return mask


def causal(time: int) -> Tensor:
    return torch.ones(time, time).tril() == 0


def encoder(**settings: Any) -> nn.Module:
    return nn.TransformerEncoder(encoder_layer(**settings), 1, enable_nested_tensor=False)


CASES: dict[str, tuple[Any, Any]] = {
    "encoder layer": (encoder_layer, lambda b, t: {"src": tokens(b, t)}),
    "norm first, gelu, time first": (
        lambda: encoder_layer(norm_first=True, activation="gelu", batch_first=False),
        lambda b, t: {"src": tokens(b, t)},
    ),
    "no bias": (lambda: encoder_layer(bias=False), lambda b, t: {"src": tokens(b, t)}),
    "frozen": (lambda: encoder().requires_grad_(False), lambda b, t: {"src": tokens(b, t)}),
    "nested tensors": (
        lambda: nn.TransformerEncoder(encoder_layer(), 1, nn.LayerNorm(WIDTH)),
        lambda b, t: {"src": tokens(b, t), "src_key_padding_mask": padding(b, t)},
    ),
    "causal": (encoder, lambda b, t: {"src": tokens(b, t), "mask": causal(t)}),
    "decoder": (
        lambda: nn.TransformerDecoder(decoder_layer(), 1),
        lambda b, t: {"tgt": tokens(b, t), "memory": tokens(b, t + 1), "tgt_mask": causal(t)},
    ),
    "transformer": (
        lambda: nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=True),
        lambda b, t: {"src": tokens(b, t), "tgt": tokens(b, t - 1)},
    ),
    "bfloat16": (
        lambda: encoder().bfloat16(),
        lambda b, t: {"src": tokens(b, t, dtype=torch.bfloat16)},
    ),
    "weights": (Attends, lambda b, t: {"query": tokens(b, t)}),
    "weights of each head": (
        lambda: Attends({"average_attn_weights": False}, dropout=0.2, batch_first=True),
        lambda b, t: {"query": tokens(b, t)},
    ),
    "other widths": (
        lambda: Attends(kdim=6, vdim=4, batch_first=True),
        lambda b, t: {
            "query": tokens(b, t),
            "key": tokens(b, t + 2, 6),
            "value": tokens(b, t + 2, 4),
        },
    ),
    "added keys": (
        lambda: Attends({"need_weights": False}, add_bias_kv=True, add_zero_attn=True),
        lambda b, t: {"query": tokens(t, b), "key_padding_mask": padding(b, t)},
    ),
    "without a batch": (Attends, lambda b, t: {"query": tokens(b, t)[0]}),
    "both masks": (
        lambda: Attends(batch_first=True),
        lambda b, t: {
            "query": tokens(b, t),
            "key_padding_mask": padding(b, t),
            "attn_mask": causal(t),
        },
    ),
    "a mask of numbers for each head": (
        lambda: Attends({"need_weights": False}, batch_first=True),
        lambda b, t: {"query": tokens(b, t), "attn_mask": tokens(2 * b, t, t)},
    ),
    "the hint is_causal": (
        lambda: Attends({"is_causal": True, "need_weights": False}, batch_first=True),
        lambda b, t: {"query": tokens(b, t), "attn_mask": causal(t)},
    ),
    "the model itself": (
        lambda: nn.MultiheadAttention(WIDTH, 2),
        lambda b, t: {"query": tokens(b, t), "key": tokens(b, t), "value": tokens(b, t)},
    ),
    "a forward that hands on": (
        lambda: nn.Sequential(HandsOn(WIDTH, 2, batch_first=True)),
        lambda b, t: {"input": tokens(b, t)},
    ),
    "the function": (Pooling, lambda b, t: {"x": tokens(b, t)}),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_attention_is_captured_as_its_projections(name: str) -> None:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    before = {path: id(module) for path, module in model.named_modules()}
    mg = MaseGraph(model, dummy_in=inputs(2, 5))
    assert {path: id(module) for path, module in model.named_modules()} == before
    assert list(mg.model.state_dict()) == list(model.state_dict())
    operators = [mg.operator(node).name for node in mg.nodes]
    assert "scaled_dot_product_attention" in operators or name == "weights of each head"
    assert operators.count("linear") >= 4 and "multihead_attention" not in operators
    bound = 0.05 if name == "bfloat16" else 1e-5
    for given in (inputs(2, 5), inputs(3, 7)):
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                found, expected = tensors_in(mg.model(**given)), tensors_in(model(**given))
            torch.testing.assert_close(found, expected, atol=bound, rtol=bound)


def hidden(kind: str, batch: int, time: int, row: int | None) -> dict[str, Tensor]:
    """A mask that hides every key from one query, or from all of one text; None hides none so."""
    hides = torch.ones(time, time, dtype=torch.bool).triu(1)
    if kind in ("padding", "numbers for padding"):
        hides = torch.zeros(batch, time, dtype=torch.bool)
        hides[:, time - 1] = True
    elif kind == "heads":
        hides = hides.repeat(2 * batch, 1, 1)
    if row is not None:
        hides[row] = True
    numbers = torch.zeros(hides.shape).masked_fill(hides, float("-inf"))
    name = "key_padding_mask" if "padding" in kind else "attn_mask"
    return {name: numbers if kind.startswith("numbers") else hides}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["padding", "numbers for padding", "queries", "heads", "numbers"])
@pytest.mark.long
def test_queries_that_see_no_key_are_nan_with_weights(kind: str, dropout: float) -> None:
    torch.manual_seed(0)
    model = Attends(batch_first=True, dropout=dropout).eval()
    seen, none = ({"query": tokens(2, 5), **hidden(kind, 2, 5, row)} for row in (None, 1))
    mg = MaseGraph(model, dummy_in=seen)
    wide = {"config": {"name": "integer", "width": 32, "frac_width": 20}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": wide})
    for given in (seen, none):
        expected = tensors_in(model(**given))
        assert any(x.isnan().any() for x in expected) == (given is none)
        for form in (mg.model, quantized.model, mg.to_module()):
            found = tensors_in(form(**given))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.long
def test_training_draws_the_dropout_of_the_model() -> None:
    torch.manual_seed(0)
    model, x = encoder(dropout=0.3), tokens(2, 5)
    mg = MaseGraph(model.eval(), dummy_in={"src": x})
    results = []
    for one in (mg.model, model):
        torch.manual_seed(3)
        results.append(one.train()(x))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    results[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mg.model.parameters())


@pytest.mark.long
def test_state_dicts_have_the_parameters_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = encoder().eval(), tokens(2, 5)
    mg = MaseGraph(model, dummy_in={"src": x})
    mg.export(tmp_path / "model")
    stored = MaseGraph.from_checkpoint(tmp_path / "model")
    forms = {
        "graph": mg.model,
        "copy": copy.deepcopy(mg.model),
        "pickle": pickle.loads(pickle.dumps(mg.model)),
        "stored": stored.model,
        "module": mg.to_module(),
        "module of a file": stored.to_module(like=encoder()),
    }
    other = encoder().eval()
    for name, form in forms.items():
        assert list(form.state_dict()) == list(model.state_dict()), name
        again = encoder().eval()
        again.load_state_dict(form.state_dict())
        torch.testing.assert_close(again(x), model(x))
        form.load_state_dict(other.state_dict())
        torch.testing.assert_close(form.eval()(x), other(x))
        if name == "graph":  # the graph and its model share their memory
            model.load_state_dict(again.state_dict())
            torch.testing.assert_close(form(x), again(x))


def test_formats_codes_and_adapters_go_to_the_projections(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = encoder().eval(), tokens(2, 5)
    mg = MaseGraph(model, dummy_in={"src": x})
    attention = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    rules = {**MXINT8, "scaled_dot_product_attention": attention}
    quantized, info = passes.quantize_transform_pass(mg, rules)
    assert info["quantized"] == 6 + 1
    by_name = {"by": "regex_name", r".*self_attn\.[qv]_proj": attention}
    assert passes.quantize_transform_pass(mg, by_name)[1]["quantized"] == 2
    packed, info = passes.pack_transform_pass(quantized, {"silent": True})
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert info["packed_share"] * sum(p.numel() for p in model.parameters()) == matrices
    expected = quantized.model(x)
    torch.testing.assert_close(packed.to_module()(x), expected)
    packed.export(tmp_path / "packed")
    torch.testing.assert_close(MaseGraph.from_checkpoint(tmp_path / "packed").model(x), expected)
    unpacked, _ = passes.pack_transform_pass(packed, {"unpack": True, "silent": True})
    assert list(unpacked.model.state_dict()) == list(model.state_dict())
    _, info = passes.insert_lora_adapter_transform_pass(mg, {"target_modules": ["q_proj"]})
    assert info["inserted"] == 1


class Unlike(nn.MultiheadAttention):
    """Reads its parameters itself."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("kind", ["leaf", "path", "hooks", "own forward", "parametrized"])
@pytest.mark.long
def test_what_cannot_be_taken_apart_stays_as_it_is(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Unlike(WIDTH, 2, batch_first=True), encoder_layer()).eval()
    layer, x = model[1], tokens(2, 5)
    leaves: Any = {"leaf": [nn.MultiheadAttention], "path": ["1.self_attn"]}.get(kind, [])
    if kind == "hooks":
        layer.self_attn.out_proj.register_forward_hook(lambda module, args, y: y + 1)
    if kind == "parametrized":
        nn.utils.parametrizations.weight_norm(layer.self_attn, "in_proj_weight")
    from chop.capture.tracer import capture

    captured = capture(model, {"input": x}, leaves=leaves)
    called = {str(node.target) for node in captured.graph.nodes if node.op == "call_module"}
    assert ("1.self_attn" in called) == (kind != "own forward")
    torch.testing.assert_close(captured(x), model(x), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(module, ProjectedAttention) for module in model.modules())


@pytest.mark.long
@pytest.mark.parametrize("use_cache", [None, False])
def test_a_decoder_with_torchs_attention_is_compared_without_its_cache(
    use_cache: bool | None,
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    class Pooled(GPT2LMHeadModel):
        def __init__(self, config: GPT2Config) -> None:
            super().__init__(config)
            self.pool = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, input_ids: Tensor, **given: Any) -> Any:
            embedded = self.transformer.wte(input_ids)
            pooled = self.pool(embedded, embedded, embedded, need_weights=False)[0]
            return super().forward(inputs_embeds=embedded + pooled, **given)

    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    config = GPT2Config(n_embd=WIDTH, n_head=2, n_layer=1, vocab_size=20, n_positions=16, **ends)
    model = Pooled(config).eval()
    ids = torch.randint(20, (2, 5))
    fixed = None if use_cache is None else {"use_cache": use_cache}
    mg = MaseGraph(model, cf_args=fixed, dummy_in={"input_ids": ids})
    longer = torch.randint(20, (3, 7))
    torch.testing.assert_close(mg.model(longer)["logits"], model(longer).logits)
