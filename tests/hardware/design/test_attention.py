"""Circuits of torch's attention and encoder layers, and of other models that move the batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.design.emit import emit
from chop.integer.golden import golden_values
from tests.hardware.bench import check_graph, needs_tools

INTEGER = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
WIDTH, HEADS, TOKENS = 4, 2, 2


class Attends(nn.Module):
    """Attention of inputs with the batch first, and a linear layer.

    Args:
        own: the inputs are keys and values; otherwise a linear layer computes them.
        asks: returns the attention weights, which nothing reads.
        settings: arguments of `nn.MultiheadAttention`.
    """

    def __init__(self, own=True, asks=False, **settings):
        super().__init__()
        self.own, self.asks, self.first = own, asks, settings.pop("first", True)
        settings["batch_first"] = self.first
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **settings)
        self.memory, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, input):
        queries = input if self.first else input.transpose(0, 1)
        keys = queries if self.own else self.memory(queries)
        mixed, _ = self.attention(queries, keys, keys, need_weights=self.asks)
        return self.last(mixed if self.first else mixed.transpose(0, 1))


class Encodes(nn.Module):
    """An encoder layer, and a linear layer of the first token."""

    def __init__(self, first=True, **settings):
        super().__init__()
        self.first = first
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 6, batch_first=first, **settings)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, input):
        x = self.layer(input if self.first else input.transpose(0, 1))
        return self.last(x[:, 0] if self.first else x[0])


class Then(nn.Module):
    """A linear layer, and a function of its result.

    Args:
        then: the function, of the module and the result.
    """

    def __init__(self, then):
        super().__init__()
        self.then = then
        self.fc, self.wide = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.last, self.norm = nn.Linear(WIDTH, 3), nn.BatchNorm1d(TOKENS)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)
        self.batch_first = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.register_buffer("positions", torch.randn(TOKENS, 1, WIDTH))
        self.register_buffer("word", torch.randn(1, 1, WIDTH))
        self.register_buffer("mask", torch.eye(TOKENS).bool())
        self.register_buffer("bias", -8.0 * torch.eye(TOKENS))

    def forward(self, input):
        return self.then(self, self.fc(input))


def packed_heads(m, x):
    """Attention with one layer for queries, keys and values, as in timm."""
    packed = m.wide(x).reshape(-1, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(*packed.unbind(0))
    return m.last(mixed.transpose(1, 2).reshape(-1, TOKENS, WIDTH))


def constants_first(m, x):
    """Attention of a class token and tokens with learned positions."""
    word = m.word.expand(-1, len(x), -1)
    x = torch.cat((word, x.transpose(0, 1) + m.positions))
    return m.last(m.attention(x, x, x, need_weights=False)[0][0])


MODELS = {
    "attention": Attends,
    "attention_without_bias": lambda: Attends(bias=False),
    "attention_of_tokens_first": lambda: Attends(first=False),
    "attention_with_dropout": lambda: Attends(dropout=0.1),
    "attention_with_unread_weights": lambda: Attends(asks=True, dropout=0.1),
    "cross_attention": lambda: Attends(own=False),
    "added_keys": lambda: Attends(add_bias_kv=True, add_zero_attn=True),
    "encoder_relu": Encodes,
    "encoder_gelu": lambda: Encodes(activation="gelu"),
    "encoder_norm_first_relu": lambda: Encodes(norm_first=True),
    "encoder_norm_first_gelu": lambda: Encodes(norm_first=True, activation="gelu"),
    "encoder_of_tokens_first": lambda: Encodes(first=False),
    "packed_heads": lambda: Then(packed_heads),
    "result_with_tokens_first": lambda: Then(
        lambda m, x: m.batch_first(x, x, x, need_weights=False)[0]
    ),
    "constants_with_tokens_first": lambda: Then(constants_first),
    "stacked_first": lambda: Then(lambda m, x: m.last(torch.stack((x, x.relu()))[1])),
}
APPROXIMATE = {"softmax", "layer_norm"}
"""Operators with narrower integers inside than float32."""


def integers(model, batch):
    torch.manual_seed(0)
    batch = {"input": torch.randn(batch, TOKENS, WIDTH)}
    mg = MaseGraph(model().eval(), dummy_in=batch)
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": INTEGER})
    integer, info = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    return integer, batch, info["operators"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_integers_are_those_of_the_quantized_model(name):
    _, _, rows = integers(MODELS[name], 3)
    assert all(row["largest"] <= 1 for row in rows)
    assert {row["kind"] for row in rows if row["different"]} <= APPROXIMATE


@needs_tools
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_the_circuit_computes_the_integers(name, tmp_path):
    integer, batch, _ = integers(MODELS[name], 3)
    built = check_graph(integer, batch, 16, tmp_path)
    assert built.interval == pytest.approx(built.design.interval, rel=0.02)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["attention", "encoder_of_tokens_first", "packed_heads"])
def test_a_batch_of_one_has_the_same_circuit(name):
    one, three = (
        emit(integers(MODELS[name], batch)[0], fold=16).netlist.interval for batch in (1, 3)
    )
    assert one == three


def test_a_result_with_tokens_first_is_checked_sample_by_sample():
    """The port names the dimension of the samples, which vectors have first."""
    integer, batch, _ = integers(MODELS["result_with_tokens_first"], 3)
    project = describe_project(emit(integer, fold=16))
    codes, golden = project.codes["batch_first_out_proj"], golden_values(integer, batch)
    assert (codes.batch_dim, codes.shape) == (1, (TOKENS, WIDTH))
    sent = get_codes(project, golden)["batch_first_out_proj"]
    assert torch.equal(sent.transpose(0, 1), golden[f"received.{codes.node}"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (lambda m, x: m.last(m.attention(x, x, x)[0]), "nn.MultiheadAttention with batch_first"),
        (lambda m, x: m.last(x.transpose(0, 1).mean(0)), "transpose its input in the model"),
        (lambda m, x: m.last(x.view(1, -1, WIDTH)), "keep the samples of a batch apart"),
        (lambda m, x: m.last(x + x.transpose(0, 1)), "in dimensions 0 and 1"),
        (
            lambda m, x: m.last(m.batch_first(x, x, x, attn_mask=m.mask)[0]),
            r"torch.softmax\(q @ k.transpose\(-2, -1\) \* scale \+ bias, -1\) @ v",
        ),
        (
            lambda m, x: m.last(F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)),
            "0.1 if self.training else 0.0",
        ),
    ],
)
def test_refusals_name_a_rewrite(then, reason):
    with pytest.raises(ConfigError, match=reason):
        emit(integers(lambda: Then(then), 2)[0], fold=16)


def test_a_mask_that_is_refused_has_a_form_with_biases():
    def attend(m, x):
        return m.last(torch.softmax(x @ x.transpose(-2, -1) * 0.5 + m.bias, -1) @ x)

    modules = {
        p.module for p in emit(integers(lambda: Then(attend), 2)[0], fold=16).netlist.instances
    }
    assert {"chop_softmax", "chop_matmul", "chop_constant"} <= modules
