"""What every registered format must satisfy. A new format gets its rows here and nothing else."""

import copy
import pickle

import pytest
import torch

from chop.formats import Float, Integer, formats, from_key, parse_format

EXAMPLES = {
    "float": [Float()],
    "integer": [
        Integer(8, 4),
        Integer(4, 2),
        Integer(2, 0),
        Integer(8, -3),
        Integer(8, 12),
        Integer(6, 3, is_signed=False),
        Integer(8, 4, floor=True),
        Integer(24, 16),
    ],
}
CASES = [
    pytest.param(fmt, id=fmt.label + ("-floor" if getattr(fmt, "floor", False) else ""))
    for kind in formats()
    for fmt in EXAMPLES.get(kind.name, [])
]
SPECIAL = [
    0.0,
    -0.0,
    1e-42,
    -1e-42,
    0.5,
    -0.5,
    1.0,
    -1.0,
    3.4e38,
    -3.4e38,
    float("inf"),
    -float("inf"),
]


def values(count: int = 4096, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    normal = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return torch.cat([normal * 4, normal * 0.05, torch.tensor(SPECIAL)]).to(dtype)


def test_every_registered_format_has_examples():
    assert {kind.name for kind in formats()} == set(EXAMPLES)


@pytest.mark.parametrize("fmt", CASES)
def test_rounding_is_idempotent_and_monotone(fmt):
    x = values().sort().values
    y = fmt.round(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert torch.equal(fmt.round(y), y)
    assert (y[1:] >= y[:-1]).all()


@pytest.mark.parametrize("fmt", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_decode_inverts_encode(fmt, dtype):
    x = values(dtype=dtype)
    encoded = fmt.encode(x)
    decoded = fmt.decode(encoded)
    assert torch.equal(decoded, fmt.round(x))
    assert decoded.dtype == dtype
    if not fmt.is_identity:
        assert encoded.size_bytes == -(-x.numel() * int(fmt.bits()) // 8)


@pytest.mark.parametrize("fmt", CASES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 3, 4, 5)])
def test_any_rank(fmt, shape):
    x = torch.randn(shape)
    assert fmt(x).shape == x.shape
    assert fmt.decode(fmt.encode(x)).shape == x.shape


@pytest.mark.parametrize("fmt", CASES)
def test_the_operator_equals_the_reference_and_passes_gradients_straight_through(fmt):
    x = values().requires_grad_()
    y = fmt(x)
    assert torch.equal(y, fmt.round(x.detach()))
    weights = torch.randn(x.shape)
    (gradient,) = torch.autograd.grad((y.nan_to_num() * weights).sum(), x)
    finite = x.isfinite()
    assert torch.equal(gradient[finite], weights[finite])


@pytest.mark.parametrize("fmt", [case for case in CASES if not case.values[0].is_identity])
def test_clip_stops_the_gradient_where_values_saturate(fmt):
    x = torch.cat([torch.linspace(-40, 40, 1001), torch.tensor([1e30, -1e30])]).requires_grad_()
    (gradient,) = torch.autograd.grad(fmt(x, "clip").sum(), x)
    outside = fmt.saturates(x.detach())
    assert torch.equal(gradient, (~outside).float())
    assert outside[-1] and outside[-2]


@pytest.mark.parametrize("fmt", CASES)
def test_key_pickle_and_copy_give_the_same_format(fmt):
    assert from_key(fmt.key) == fmt
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    assert copy.deepcopy(fmt) == fmt
    assert hash(fmt) == hash(from_key(fmt.key))
    assert parse_format(fmt) is fmt


@pytest.mark.parametrize("fmt", CASES)
def test_compiles_as_one_node(fmt):
    torch._dynamo.reset()
    x = values(64)
    compiled = torch.compile(lambda t: fmt(t) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), fmt(x) * 2)


@pytest.mark.parametrize("fmt", CASES)
def test_is_a_wellformed_torch_operator(fmt):
    if not fmt.is_identity:
        for gradient in ("identity", "clip"):
            x = torch.randn(3, 4, requires_grad=True)
            torch.library.opcheck(torch.ops.chop.fake_quantize.default, (x, fmt.key, gradient))
