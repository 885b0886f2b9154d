"""What every registered format must satisfy. A new format gets its rows here and nothing else."""

import copy
import dataclasses
import pickle

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    ScaleInteger,
    Ternary,
    formats,
    from_key,
    parse_format,
)
from chop.formats.base import Encoded
from chop.formats.packing import pack_bits

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
    "minifloat_ieee": [
        MinifloatIEEE(8, 4),
        MinifloatIEEE(8, 5),
        MinifloatIEEE(6, 3),
        MinifloatIEEE(4, 2),
        MinifloatIEEE(3, 1),
        MinifloatIEEE(8, 4, 11),
        MinifloatIEEE(8, 4, variant="finite"),
        MinifloatIEEE(16, 5),
        MinifloatIEEE(32, 8),
    ],
    "minifloat_denorm": [
        MinifloatDenorm(8, 4),
        MinifloatDenorm(6, 2, 3),
        MinifloatDenorm(4, 2),
        MinifloatDenorm(16, 6),
    ],
    "log": [
        Log(8),
        Log(4, 3),
        Log(4, 3, nearest="linear"),
        Log(4, 3, zero_code=True),
        Log(5, 7, nearest="linear", zero_code=True),
        Log(2, 0),
    ],
    "block_fp": [
        BlockFP(8),
        BlockFP(4, 4, 3, block_size=[2, 16]),
        BlockFP(6, block_size=16, block_dim=0),
        BlockFP(12, block_size=[2, 16], skip_first_dim=True),
    ],
    "block_minifloat": [BlockMinifloat(8, 4), BlockMinifloat(6, 2, 4, block_size=[1, 32])],
    "block_log": [BlockLog(8), BlockLog(4, 4), BlockLog(16, block_size=7)],
    "mxint": [MXInt(), MXInt(4), MXInt(8, block_dim=0), MXInt(16, block_size=(4, 8)), MXInt(2)],
    "mxfp": [
        MXFP(),
        MXFP(8, 5),
        MXFP(6, 3),
        MXFP(6, 2),
        MXFP(4, 2),
        MXFP(4, 2, "ceil"),
        MXFP(8, 4, "even"),
    ],
    "nvfp4": [NVFP4(), NVFP4(block_size=32)],
    "scale_integer": [
        ScaleInteger(8),
        ScaleInteger(4, granularity="channel"),
        ScaleInteger(8, granularity="row"),
        ScaleInteger(4, granularity="group", group_size=48),
        ScaleInteger(8, quantile=0.9),
        ScaleInteger(8, is_signed=False),
    ],
    "binary": [
        Binary(),
        Binary(scaling_factor=True),
        Binary(bipolar=False),
        Binary(bipolar=False, scaling_factor=True),
        Binary(stochastic=True),
        Binary(stochastic=True, scaling_factor=True),
    ],
    "binary_residual": [
        BinaryResidual(),
        BinaryResidual(levels=3, scales=[4.0, 2.0, 1.0]),
        BinaryResidual(residual_sign=False),
        BinaryResidual(bipolar=False),
        BinaryResidual(stochastic=True),
    ],
    "ternary": [
        Ternary(),
        Ternary(scaling_factor=True),
        Ternary(max=True),
        Ternary(median=0.5),
        Ternary(threshold=0.25, scaling_factor=True),
    ],
}
ALL = [fmt for kind in formats() for fmt in EXAMPLES.get(kind.name, [])]


def cases(chosen=lambda fmt: True):
    return [pytest.param(fmt, id=fmt.label.replace(" ", "-")) for fmt in ALL if chosen(fmt)]


def is_deterministic(fmt):
    return not getattr(fmt, "stochastic", False)


def has_its_own_values_as_fixed_points(fmt):
    """Not so: {0, 1} takes 0 to 1, and scales that are means or rounded quotients move."""
    is_zero_one = getattr(fmt, "bipolar", True) is False
    measures_levels = isinstance(fmt, BinaryResidual) and not fmt.scales and fmt.residual_sign
    cuts = getattr(fmt, "quantile", 1) < 1
    return is_deterministic(fmt) and not (
        is_zero_one or measures_levels or cuts or fmt.name == "nvfp4"
    )


CASES = cases()
DETERMINISTIC = cases(is_deterministic)
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


FINITE = [value for value in SPECIAL if abs(value) < 1e38]
NAN = float("nan")


def values(count: int = 2048, dtype: torch.dtype = torch.float32, special=SPECIAL) -> torch.Tensor:
    """(rows, 96): normal values of two scales, and some special ones."""
    normal = torch.randn(count, generator=torch.Generator().manual_seed(0))
    x = torch.cat([normal * 4, normal * 0.05, torch.tensor(special)])
    return x[-(x.numel() // 96 * 96) :].view(-1, 96).to(dtype)


def groups_of(fmt, x):
    """The parts of `x` that are rounded together, (..., size)."""
    return fmt.groups.split(x) if hasattr(fmt, "groups") else x.reshape(1, -1)


def same(a, b):
    """Equal bit for bit, all NaNs being one."""
    both = a.isnan() & b.isnan()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return a.dtype == b.dtype and bool((both | equal).all())


def codebook(fmt):
    """Every finite number of an elementwise format, float64."""
    width = int(fmt.bits())
    codes = pack_bits(torch.arange(2**width), width)
    book = fmt.decode(Encoded(codes, torch.Size([2**width]), torch.float64))
    return book[book.isfinite()].unique()


def test_every_registered_format_has_examples():
    assert {kind.name for kind in formats()} == set(EXAMPLES)
    assert len({fmt.key for fmt in ALL}) == len(ALL)


@pytest.mark.parametrize("fmt", cases(has_its_own_values_as_fixed_points))
def test_rounding_is_idempotent(fmt):
    y = fmt.round(values(special=FINITE))
    again = fmt.round(y)
    if fmt.name == "scale_integer":  # its scale is a quotient, rounded to float32
        torch.testing.assert_close(again, y, rtol=1e-6, atol=0)
    else:
        assert same(again, y)


def is_monotone(fmt):
    """Not so where a residual's factor is larger than that of the level before."""
    return is_deterministic(fmt) and (fmt.name != "binary_residual" or fmt.scales is not None)


@pytest.mark.parametrize("fmt", cases(is_monotone))
def test_rounding_is_monotone_among_values_that_share_a_scale(fmt):
    x = values(special=FINITE)
    if hasattr(fmt, "groups"):
        x = fmt.groups.join(groups_of(fmt, x).sort(-1).values, x.shape)
        # Padding lies between the signs; only full groups stay sorted.
        full = groups_of(fmt, torch.ones_like(x)).all(-1)
    else:
        x, full = x.flatten().sort().values, torch.tensor([True])
    y = groups_of(fmt, fmt.round(x))[full]
    assert y.numel() > 0
    assert (y[..., 1:] >= y[..., :-1]).all()


HAS_NO_MIRROR = ("integer", "binary", "binary_residual")


@pytest.mark.parametrize(
    "fmt",
    cases(lambda fmt: fmt.name not in HAS_NO_MIRROR and getattr(fmt, "is_signed", True)),
)
def test_rounding_mirrors_signs(fmt):
    x = values(special=[1e-42, 0.5, 1.0, 1e20])
    assert (x != 0).all()
    assert torch.equal(fmt.round(-x), -fmt.round(x))


def is_small_and_elementwise(fmt):
    return hasattr(fmt, "element") and not hasattr(fmt, "groups") and fmt.bits() <= 8


@pytest.mark.parametrize("fmt", cases(is_small_and_elementwise))
def test_is_the_nearest_of_all_its_numbers(fmt):
    book = codebook(fmt)
    middles = (book[1:] + book[:-1]) / 2
    spread = torch.linspace(-1.2, 1.2, 4001, dtype=torch.float64) * book[-1]
    x = torch.cat([book, middles, spread, torch.randn(2000).double()])
    y = fmt.round(x)
    assert torch.equal(fmt.round(book), book)
    assert torch.isin(y, book).all()
    if fmt.name == "log" and fmt.nearest == "log":
        x, y = x[x != 0], y[x != 0]
        distance = (x.abs().log2()[:, None] - book[book > 0].log2()).abs()
        if not fmt.zero_code:
            best = distance.min(1).values
            torch.testing.assert_close((x.abs().log2() - y.abs().log2()).abs(), best)
            assert torch.equal(y.sign(), x.sign())
    else:
        best = (x[:, None] - book).abs().min(1).values
        nonzero = x != 0 if fmt.name == "log" else torch.ones_like(x, dtype=torch.bool)
        assert torch.equal((x - y).abs()[nonzero], best[nonzero])


@pytest.mark.parametrize("fmt", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_decode_inverts_encode(fmt, dtype):
    x = values(dtype=dtype)
    torch.manual_seed(0)
    encoded = fmt.encode(x)
    torch.manual_seed(0)
    rounded = fmt.round(x)
    decoded = fmt.decode(encoded)
    assert same(decoded, rounded)
    assert decoded.dtype == dtype
    if not fmt.is_identity:
        spare = encoded.size_bytes - fmt.bits(x.shape) * x.numel() / 8
        assert 0 <= spare < 2


@pytest.mark.parametrize("fmt", CASES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (5, 37), (2, 3, 4, 5)])
def test_any_rank(fmt, shape):
    x = torch.randn(shape)
    torch.manual_seed(1)
    y = fmt(x)
    assert y.shape == x.shape
    torch.manual_seed(1)
    assert same(fmt.decode(fmt.encode(x)), y)
    assert fmt.saturates(x).shape == x.shape


@pytest.mark.parametrize("fmt", CASES)
def test_special_values(fmt):
    x = torch.tensor([NAN, 1.0, 0.0, -0.0, 1e-42, 3.4e38])
    y = fmt.round(x)
    assert y[0].isnan()
    poisons_its_block = fmt.name in ("mxint", "mxfp", "nvfp4")
    assert (y[1:].isnan() == poisons_its_block).all()
    infinite = fmt.round(torch.tensor([float("inf"), 1.0, -float("inf")]))
    if poisons_its_block:
        assert infinite.isnan().all()
    elif not fmt.is_identity:
        assert infinite.isfinite().all()
        assert infinite[0] >= infinite[1] >= infinite[2] or not is_deterministic(fmt)
    assert fmt.round(torch.zeros(40)).isfinite().all()


@pytest.mark.parametrize("fmt", DETERMINISTIC)
def test_the_operator_equals_the_reference_and_passes_gradients_straight_through(fmt):
    x = values().requires_grad_()
    y = fmt(x)
    assert same(y.detach(), fmt.round(x.detach()))
    weights = torch.randn(x.shape)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    assert torch.equal(gradient, weights)


@pytest.mark.parametrize("fmt", [case for case in DETERMINISTIC if case.values[0].name != "float"])
def test_clip_stops_the_gradient_where_values_saturate(fmt):
    x = torch.cat([torch.linspace(-40, 40, 1001), torch.tensor([1e30, -1e30])]).requires_grad_()
    (gradient,) = torch.autograd.grad(fmt(x, "clip").sum(), x)
    outside = fmt.saturates(x.detach())
    assert torch.equal(gradient, (~outside).float())
    has_fixed_range = fmt.saturates(torch.tensor([1e30])).all()
    assert (outside[-1] and outside[-2]) or not has_fixed_range


@pytest.mark.parametrize("fmt", CASES)
def test_key_pickle_and_copy_give_the_same_format(fmt):
    assert from_key(fmt.key) == fmt
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    assert copy.deepcopy(fmt) == fmt
    assert hash(fmt) == hash(from_key(fmt.key))
    assert parse_format(fmt) is fmt


@pytest.mark.parametrize("name", EXAMPLES)
def test_compiles_as_one_node(name):
    fmt = EXAMPLES[name][0]
    torch._dynamo.reset()
    x = values(64, special=FINITE)
    compiled = torch.compile(lambda t: fmt(t) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), fmt(x) * 2)


@pytest.mark.parametrize("fmt", DETERMINISTIC)
def test_the_memory_layout_is_kept_and_does_not_matter(fmt):
    x = torch.randn(2, 5, 4, 6)
    for other in (x.to(memory_format=torch.channels_last), x.transpose(1, 3).contiguous().mT.mT):
        assert fmt(other).stride() == torch.empty_like(other).stride()
        assert torch.equal(fmt(other), fmt(other.contiguous()))
    if not fmt.is_identity:
        assert fmt(x.mT).stride() == x.mT.stride()


@pytest.mark.parametrize("fmt", DETERMINISTIC)
def test_large_tensors_are_rounded_like_their_parts(fmt):
    x = torch.randn(3, 130, 96) * 3
    y = fmt.round(x)
    assert same(fmt.decode(fmt.encode(x)), y)
    has_fixed_range = fmt.saturates(torch.tensor([1e30])).all() and fmt.name != "ternary"
    if has_fixed_range or fmt.name in ("mxfp", "block_log"):
        assert torch.equal(torch.stack([fmt.round(part) for part in x]), y)


@pytest.mark.parametrize("name", EXAMPLES)
def test_is_a_wellformed_torch_operator(name):
    fmt = EXAMPLES[name][-1 if is_deterministic(EXAMPLES[name][-1]) else 0]
    if not fmt.is_identity:
        for gradient in ("identity", "clip"):
            x = torch.randn(3, 4, requires_grad=True)
            torch.library.opcheck(torch.ops.chop.fake_quantize.default, (x, fmt.key, gradient))


@pytest.mark.parametrize("kind", formats(), ids=lambda kind: kind.name)
def test_the_search_space_holds_valid_settings(kind):
    known = {field.name for field in dataclasses.fields(kind)}
    assert set(kind.search_space) <= known
    room = {"width": {"exponent_width": 2}, "exponent_width": {"width": 8}}
    for field, choices in kind.search_space.items():
        others = {key: value for key, value in room.get(field, {}).items() if key in known}
        for value in choices:
            fmt = dataclasses.replace(EXAMPLES[kind.name][0], **others, **{field: value})
            assert fmt.round(torch.ones(2)).shape == (2,)


def test_a_huge_block_size_or_a_wrong_one_is_refused():
    for size, message in [(0, "got 0"), ([], "got \\[\\]"), (16.0, "expected int"), ([0, 4], "0")]:
        with pytest.raises(ConfigError, match=message):
            MXInt(8, block_size=size)
    assert BlockFP(8, block_size=[1, 16]) == BlockFP(8, block_size=16) == BlockFP(8)
