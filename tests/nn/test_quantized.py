"""One parametrized set of checks for every quantized operator, whatever it is."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.formats import Integer, QuantSpec
from chop.ir.ops import OPS
from chop.nn import quantized as q
from chop.nn.quantized.base import float_class
from chop.nn.weight_cache import cached_weights
from tests.stand_ins import Affine, Watch
from tests.subcases import subcases

WIDE = QuantSpec.uniform(Integer(24, 16))
CLOSE = 27 * 2 * 2.0**-17 + 2.0**-16
"""Of the longest sum: 27 products of operands that are half a step off, and a step for the sum, to
which a processor may round it that adds up in another order."""
NARROW = QuantSpec.uniform(Integer(4, 2))

EXAMPLES = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "linear-no-bias": (lambda: nn.Linear(6, 4, bias=False), (2, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    "conv1d-circular": (lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 5, 3, padding="same", dilation=2), (2, 3, 8, 8)),
    "conv_transpose2d": (
        lambda: nn.ConvTranspose2d(3, 5, 3, stride=2, padding=1, output_padding=1),
        (2, 3, 5, 5),
    ),
    "batch_norm1d": (lambda: nn.BatchNorm1d(6), (8, 6)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "batch_norm2d-cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (4, 3, 5, 5)),
    "batch_norm2d-untracked": (
        lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False),
        (4, 3, 5, 5),
    ),
    "layer_norm": (lambda: nn.LayerNorm(6), (2, 3, 6)),
    "layer_norm-plain": (lambda: nn.LayerNorm(6, elementwise_affine=False), (2, 3, 6)),
    "rms_norm": (lambda: nn.RMSNorm(6), (2, 3, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (2, 6, 5)),
    "embedding": (lambda: nn.Embedding(10, 4, padding_idx=0), "indices"),
    "relu": (nn.ReLU, (2, 6)),
    "gelu": (lambda: nn.GELU("tanh"), (2, 6)),
    "silu": (nn.SiLU, (2, 6)),
    "tanh": (nn.Tanh, (2, 6)),
    "softplus": (lambda: nn.Softplus(2.0), (2, 6)),
    "softsign": (nn.Softsign, (2, 6)),
    "selu": (nn.SELU, (2, 6)),
    "sigmoid": (nn.Sigmoid, (2, 6)),
    "softmax": (lambda: nn.Softmax(-1), (2, 6)),
    "log_softmax": (lambda: nn.LogSoftmax(-1), (2, 6)),
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2, ceil_mode=True), (2, 3, 8)),
    "max_pool2d": (lambda: nn.MaxPool2d(3, 2, 1), (2, 3, 8, 8)),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False), (2, 3, 8)),
    "avg_pool2d": (lambda: nn.AvgPool2d(3, 2, divisor_override=2), (2, 3, 8, 8)),
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(2), (2, 3, 8)),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (2, 3, 8, 8)),
}


OF_TWO_INPUTS = {"expert_linear"}
"""Operators that have tests of their own."""


def example(name):
    torch.manual_seed(0)
    make, shape = EXAMPLES[name]
    module = make()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randint(0, 10, (2, 5)) if shape == "indices" else torch.randn(shape)
    return module, x, OPS[name.split("-")[0]].quantized


def test_every_quantized_module_has_an_example():
    quantized = {name for name, row in OPS.items() if row.quantized is not None}
    assert quantized - OF_TWO_INPUTS == {name.split("-")[0] for name in EXAMPLES}


@subcases("name", EXAMPLES)
@subcases("training", [True, False])
def test_a_wide_format_changes_nothing(name, training):
    module, x, kind = example(name)
    module.train(training)
    twin = kind.from_float(copy.deepcopy(module), WIDE)
    torch.testing.assert_close(twin(x), module(x), atol=CLOSE, rtol=0)
    assert list(twin.state_dict()) == list(module.state_dict())
    for key, value in module.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[key], value, atol=CLOSE, rtol=0)
    assert twin.training == training
    assert isinstance(twin, type(module))


@subcases("name", EXAMPLES)
def test_a_narrow_format_changes_the_output_and_trains(name):
    module, x, kind = example(name)
    twin = kind.from_float(copy.deepcopy(module), NARROW)
    x = x.requires_grad_() if x.is_floating_point() else x
    y = twin(x * 2 if x.is_floating_point() else x)
    assert not torch.allclose(y, module(x * 2 if x.is_floating_point() else x))
    (y.square().sum()).backward()
    for parameter in [*twin.parameters(), *([x] if x.is_floating_point() else [])]:
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0 or name.startswith(("batch_norm", "softmax"))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.sampled(3)
def test_pickle_copy_and_compile(name):
    module, x, kind = example(name)
    twin = kind.from_float(module.eval(), NARROW)
    expected = twin(x)
    assert torch.equal(pickle.loads(pickle.dumps(twin))(x), expected)
    assert torch.equal(copy.deepcopy(twin)(x), expected)
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), expected)


@subcases("name", EXAMPLES)
def test_operands_are_quantized_one_by_one(name):
    module, x, kind = example(name)
    grid = Integer(4, 1)
    twin = kind.from_float(module.eval(), QuantSpec(data_out=grid))
    assert torch.equal(twin(x), grid.round(twin(x)))
    assert torch.equal(grid.round(module(x)), twin(x))


def slots(kind, module):
    return [*kind.present_operands(module), "data_out"]


@subcases("name", EXAMPLES)
@subcases("training", [True, False])
def test_an_observer_sees_every_operand_and_changes_nothing(name, training):
    module, x, kind = example(name)
    plain = kind.from_float(copy.deepcopy(module), QuantSpec()).train(training)
    watches = {operand: Watch() for operand in slots(kind, module)}
    twin = kind.from_float(copy.deepcopy(module), QuantSpec(**watches)).train(training)
    y = twin(x)
    assert torch.equal(y, plain(x)) and not twin.spec.is_float and not twin.running
    expected = {**dict(module.named_parameters()), "data_in": x, "data_out": y}
    for operand, watch in watches.items():
        if expected[operand].is_floating_point():
            assert all(torch.equal(seen, expected[operand]) for seen in watch.seen)
            assert len(watch.seen) == 1
    assert f"data_out={watches['data_out'].label}" in repr(twin)
    again = copy.deepcopy(twin).train(training)
    assert torch.equal(again(x), twin(x))
    assert len(again.spec.data_out.seen) == len(watches["data_out"].seen) == 2


@subcases("name", EXAMPLES)
def test_a_stand_in_computes_what_it_says(name):
    module, x, kind = example(name)
    stand_in = Affine()
    chosen = dict.fromkeys(slots(kind, module), stand_in)
    twin = kind.from_float(copy.deepcopy(module), QuantSpec(**chosen)).eval()
    oracle = copy.deepcopy(module).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.copy_(parameter * -3 + 1)
    inputs = x * -3 + 1 if x.is_floating_point() else x
    expected = oracle(inputs) * -3 + 1
    torch.testing.assert_close(twin(x), expected)
    with cached_weights(twin), torch.no_grad():
        torch.testing.assert_close(twin(x), expected)
        stand_in.scale.mul_(2)
        assert not torch.allclose(twin(x), expected)  # nothing of a stand-in's is kept


def test_stand_ins_have_gradients_and_compile():
    module, x, kind = example("linear")
    spec = QuantSpec(Affine(), Affine(), Affine(), Affine())
    twin = kind.from_float(module, spec)
    expected = twin(x)
    (grad,) = torch.autograd.grad(expected.sum(), twin.bias)
    assert torch.equal(grad, torch.full((4,), 3 * -3.0 * -3.0))
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), expected)


def test_calls_and_attention_take_stand_ins():
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    watch = Watch()
    add = q.QuantCall(torch.add, {"input": "data_in", "other": "data_in"}, {"data_in": watch})
    assert torch.equal(add(x, y), x + y)
    assert torch.equal(torch.stack(watch.seen), torch.stack([x, y]))
    negate = q.QuantCall(torch.neg, {"input": "data_in"}).with_spec(QuantSpec(data_out=Affine()))
    assert torch.equal(negate(x), x * 3 + 1)
    query, key, value = torch.randn(3, 1, 2, 5, 4)
    data, weights = Watch(), Watch()
    attention = q.QuantScaledDotProductAttention({"data_in": data, "weight": weights})
    torch.testing.assert_close(
        attention(query, key, value), F.scaled_dot_product_attention(query, key, value)
    )
    assert attention.spec == QuantSpec(data_in=data, weight=weights)
    assert len(data.seen) == 4  # queries, keys, scores, values
    torch.testing.assert_close(weights.seen[0], (query @ key.mT / 2).softmax(-1))


def test_nothing_is_forgotten():
    module = nn.Linear(4, 2).to(torch.bfloat16).requires_grad_(False).eval()
    module.register_buffer("mask", torch.ones(4))
    module.note = "kept"
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    twin = q.QuantLinear.from_float(module, NARROW)
    assert twin(torch.randn(1, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert calls == [1]
    assert twin.note == "kept"
    assert twin.mask is module.mask
    assert twin.weight is module.weight
    assert not twin.weight.requires_grad
    assert not twin.training


def test_derived_fractions_come_from_the_tensors():
    module = nn.Linear(64, 64)
    nn.init.normal_(module.weight, std=0.02)
    auto = QuantSpec(weight=Integer(4, "auto"), bias=Integer(8, "minmax"))
    twin = q.QuantLinear.from_float(module, auto)
    assert twin.spec.weight == Integer(4, "auto").fitted(module.weight)
    assert twin.spec.bias.is_fitted
    assert twin.spec.weight.frac_width > 4


@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.mul, torch.matmul])
def test_calls_quantize_their_operands(function):
    call = q.QuantCall(
        function, {"input": "data_in", "other": "weight"}, QuantSpec(Integer(4, 2), Integer(4, 1))
    )
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    assert torch.equal(call(a, b), function(Integer(4, 2).round(a), Integer(4, 1).round(b)))
    restored = pickle.loads(pickle.dumps(call))
    assert torch.equal(restored(a, b), call(a, b))


def test_calls_leave_scalars_and_indices_alone():
    call = q.QuantCall(torch.add, {"input": "data_in", "other": "data_in"}, NARROW)
    assert call(torch.tensor([0.1]), 0.3).item() == pytest.approx(0.3)
    assert torch.equal(call(torch.tensor([1000]), 1), torch.tensor([1001]))


MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.rand(2, 1, 5, 5) > 0.3},
    "additive": {"attn_mask": torch.randn(2, 1, 5, 5)},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.2},
    "masked row": {
        "attn_mask": torch.ones(5, 5, dtype=torch.bool).index_fill(0, torch.tensor(2), False)
    },
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_wide_attention_equals_torch(options):
    q_, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    attention = q.QuantScaledDotProductAttention(WIDE)
    expected = F.scaled_dot_product_attention(q_, k, v, **options)
    torch.testing.assert_close(attention(q_, k, v, **options), expected, atol=1e-4, rtol=0)


def test_wide_grouped_query_attention_equals_torch():
    q_, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q_, k, v, enable_gqa=True)
    actual = q.QuantScaledDotProductAttention(WIDE)(q_, k, v, enable_gqa=True)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_masked_rows_have_finite_gradients():
    q_, k, v = (torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    q.QuantScaledDotProductAttention(WIDE)(q_, k, v, attn_mask=mask).square().sum().backward()
    ours = [x.grad.clone() for x in (q_, k, v)]
    for x in (q_, k, v):
        x.grad = None
    F.scaled_dot_product_attention(q_, k, v, attn_mask=mask).square().sum().backward()
    for mine, x in zip(ours, (q_, k, v), strict=True):
        torch.testing.assert_close(mine, x.grad, atol=1e-3, rtol=0)


def test_a_mask_and_causality_exclude_each_other():
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match="got both"):
        q.QuantScaledDotProductAttention(WIDE)(x, x, x, attn_mask=torch.ones(3, 3), is_causal=True)


def test_parametrized_weights_become_the_computed_ones():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    layer = q.QuantLinear.from_float(module, NARROW)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert torch.equal(layer.weight, module.weight) and layer.bias is module.bias


def test_operands_that_are_absent_have_no_format():
    linear = q.QuantLinear.from_float(nn.Linear(4, 2, bias=False), NARROW)
    assert linear.spec == QuantSpec(Integer(4, 2), Integer(4, 2))
    assert q.QuantReLU.from_float(nn.ReLU(), NARROW).spec == QuantSpec(Integer(4, 2))
    assert q.QuantScaledDotProductAttention(NARROW).spec == NARROW.only(("data_in", "weight"))


def test_attention_quantizes_products_and_softmax():
    q_, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    grid = Integer(4, 2)
    attention = q.QuantScaledDotProductAttention(QuantSpec(data_in=grid, weight=Integer(4, 3)))
    scores = grid.round(grid.round(q_) @ grid.round(k).mT * 8**-0.5)
    weights = Integer(4, 3).round(scores.softmax(-1))
    torch.testing.assert_close(attention(q_, k, v), weights @ grid.round(v))
    torch.manual_seed(0)
    dropped = attention(q_, k, v, dropout_p=0.5)
    assert not torch.allclose(dropped, attention(q_, k, v))


@pytest.mark.parametrize(
    "row", [row for row in OPS.values() if row.quantized], ids=lambda r: r.name
)
def test_the_float_class_of_an_operator_is_that_of_its_row(row):
    own = type("Own", (row.quantized,), {})
    assert float_class(own) is float_class(row.quantized)
    expected = (nn.Module,) if row.quantized.function is not None else row.modules
    assert float_class(row.quantized) in expected
