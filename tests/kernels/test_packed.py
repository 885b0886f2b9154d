"""Packed weights: decoded bit for bit, multiplied as precisely as their formats deserve."""

import math

import pytest
import torch
import torch.nn.functional as F

from chop.formats import (
    MXFP,
    NF4,
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
    QuantSpec,
    ScaleInteger,
    Ternary,
    parse_format_string,
)
from chop.kernels.cpu import bfloat16, packed, products, reader
from chop.kernels.matmul_precision import matmul_precision
from chop.nn import quantized as q
from chop.nn.packed import pack
from tests.kernels.coded import packed_linear, parts, same
from tests.kernels.instruction_sets import SETS, one_set
from tests.subcases import subcases

FORMATS = [
    *(Integer(8, 6), Integer(4, 3), Integer(6, 4), Integer(16, 12), Integer(8, 5, is_signed=False)),
    *(MXInt(8), MXInt(4), MXInt(6), MXInt(12), MXInt(8, block_size=64), MXInt(8, block_size=48)),
    MXInt(4, block_size=5),
    *(MXFP(8, 4), MXFP(8, 5), MXFP(6, 3), MXFP(5, 2), MXFP(4, 2), MXFP(3, 1)),
    NVFP4(),
    *(BlockFP(8), BlockFP(4)),
    *(BlockMinifloat(8, 4), BlockMinifloat(4, 2)),
    BlockLog(4),
    *(Log(8), Log(4)),
    *(MinifloatIEEE(8, 4), MinifloatIEEE(8, 5), MinifloatIEEE(6, 3)),
    MinifloatDenorm(8, 4),
    *(Binary(), Binary(scaling_factor=True), Binary(bipolar=False)),
    *(Ternary(), Ternary(scaling_factor=True)),
    BinaryResidual(levels=3),
    *(ScaleInteger(8), ScaleInteger(8, granularity="channel")),
    *(ScaleInteger(4, granularity="group", group_size=64), ScaleInteger(5, granularity="row")),
    *(parse_format_string("group_integer:width=4"), parse_format_string("group_affine:width=4")),
    parse_format_string("group_affine:width=2:group_size=48"),
    parse_format_string("group_affine:width=8"),
    *(NF4(nested=True), NF4(48, nested=True, table="fp4")),
]
WITHOUT_LOOPS = [MXInt(8, block_dim=0), BlockFP(8, block_size=(4, 16)), BlockLog(8), Integer(20, 8)]
SHAPES = [(64, 96), (7, 33), (5, 768), (9, 50), (3, 4, 5, 6), (40,), ()]
FLOAT = Float().key


pytestmark = pytest.mark.usefixtures("loops")


def weights(shape, dtype):
    for magnitude in (1.0, 1e-3, 1e-38, 1e30):
        x = (torch.randn(shape) * magnitude).to(dtype)
        yield torch.where(x.isfinite(), x, 0)
    yield torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
@pytest.mark.sampled(1)
def test_decoding_gives_the_reference_bits(fmt):
    decoded = 0
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            for x in weights(shape, dtype):
                encoded = fmt.encode(x)
                found = packed.decode(parts(encoded, fmt), dtype)
                if found is not None:
                    decoded += 1
                    assert found.shape == x.shape
                    assert same(found, fmt.decode(encoded)), (shape, dtype)
    assert decoded >= 5 * len(SHAPES)  # all of float32


@pytest.mark.parametrize("fmt", WITHOUT_LOOPS, ids=lambda fmt: fmt.label)
def test_what_the_loops_do_not_know_is_left_to_the_reference(fmt):
    x = torch.randn(48, 96)
    encoded = fmt.encode(x)
    assert packed.decode(parts(encoded, fmt), x.dtype) is None
    assert same(torch.ops.chop.decode(*parts(encoded, fmt), x.dtype), fmt.round(x))


@pytest.mark.parametrize("fmt", [MXFP(8, 4), MXFP(8, 5), MinifloatIEEE(8, 4), MXInt(8)])
def test_every_byte_decodes_to_what_the_reference_says(fmt):
    encoded = fmt.encode(torch.zeros(8, 64))
    encoded.codes.copy_(torch.arange(512).to(torch.uint8))
    if encoded.scales is not None:
        encoded.scales.copy_(torch.tensor([0, 255, 127, 254] * 4, dtype=torch.uint8))
    found = packed.decode(parts(encoded, fmt), torch.float32)
    expected = fmt.decode(encoded)
    # Codes of infinity and NaN are none that rounding gives: any number that is not finite will do.
    finite = expected.isfinite() & found.isfinite()
    assert same(found[finite], expected[finite])
    assert torch.equal(found.isfinite(), expected.isfinite())


@pytest.mark.parametrize(
    ("factor", "mean"),
    [(0.1, 1.0), (-2.0, 1.0), (3e38, 3e38), (1e-40, 1e-38), (torch.nan, 0.0)],
)
def test_nested_scales_of_any_bytes_are_read_in_place(factor, mean, monkeypatch):
    fmt, (rows, columns) = NF4(16, nested=True), (33, 512)
    encoded = fmt.encode(torch.randn(rows, columns))
    count = rows * columns // 16
    factors = factor * torch.rand(-(-count // 256)).add(0.5)
    encoded.scales[:count] = torch.arange(count).to(torch.uint8)
    encoded.scales[count:] = torch.cat([factors, torch.tensor([mean])]).view(torch.uint8)
    expected = fmt.decode(encoded)
    monkeypatch.setattr(NF4, "flattened", None)  # the loops do not need it
    assert same(packed.decode(parts(encoded, fmt), torch.float32), expected)


@pytest.mark.long
@subcases("fmt", FORMATS, ids=lambda fmt: fmt.label)
@subcases("rows", [1, 3, 4, 8])
def test_few_rows_are_multiplied_in_float32(fmt, rows, small_ones):
    for outputs, columns in [(64, 96), (7, 34), (33, 768), (9, 50)]:
        weight, x = torch.randn(outputs, columns) * 0.05, torch.randn(rows, columns)
        encoded = fmt.encode(weight)
        for bias in (None, torch.randn(outputs)):
            y = packed.linear(x, FLOAT, parts(encoded, fmt), bias)
            decoded = fmt.decode(encoded).double()
            exact = F.linear(x.double(), decoded, None if bias is None else bias.double())
            # Sums of float32 products, in any order: Higham 2002, section 3.1.
            bound = columns * 2.0**-23 * (x.double().abs() @ decoded.abs().T + 1)
            assert ((y - exact).abs() <= bound).all()


@pytest.mark.long
@subcases("fmt", FORMATS, ids=lambda fmt: fmt.label)
@subcases("rounds", [False, True])
def test_codes_are_decoded_a_span_at_a_time_for_many_rows(fmt, rounds, small_ones):
    """Spans of 1,024 columns, four outputs, 3 or 6 rows of at most 120: with some left of each."""
    for outputs, columns in [(6, 2080), (9, 50), (3, 1024)]:
        weight, x = torch.randn(outputs, columns) * 0.05, torch.randn(245, columns)
        encoded = fmt.encode(weight)
        stored, decoded = parts(encoded, fmt), fmt.decode(encoded)
        found, bias = reader.find_reader(stored), torch.randn(outputs)
        taken, values = x.double(), decoded.double()
        is_exact = packed.bfloat16_roundings(fmt, weight.shape) == 2
        if rounds and found.has_bfloat16:
            taken, values = x.bfloat16().double(), decoded.bfloat16().double()
        exact = F.linear(taken, values)
        bound = columns * 2.0**-23 * (taken.abs() @ values.abs().T + 1)
        if rounds and found.has_bfloat16 and not is_exact:  # scales times codes may lie at a tie
            bound += 2.0**-8 * (taken.abs() @ values.abs().T)
        for rows in (5, 6, 13, 120, 121, 245):
            for given in (None, bias):
                y = products.by_codes(found, x[:rows], stored, given, rounds)
                off = (y - exact[:rows] - (0 if given is None else given)).abs()
                assert (off <= bound[:rows]).all(), (outputs, columns, rows)


@pytest.mark.parametrize(
    ("fmt", "weight", "x"),
    [(BlockLog(4), 1e38, 0.0), (NVFP4(), 0.02, 1e36), (Integer(8, 7), 0.05, 1e37)],
    ids=["scales", "factor of a tensor", "steps"],
)
def test_many_rows_are_finite_where_decoded_weights_make_them_so(fmt, weight, x):
    encoded = fmt.encode(torch.randn(256, 320).clamp(-3, 3) * weight)
    rows = torch.randn(64, 320) * x
    y = packed.linear(rows, FLOAT, parts(encoded, fmt), None)
    expected = F.linear(rows.double(), fmt.decode(encoded).double())
    assert y.isfinite().all()
    assert ((y - expected).abs() <= 1e-4 * expected.abs().max()).all()


GROUPED = [parse_format_string(f"group_{kind}:width=8") for kind in ("integer", "affine")]
BOUND_COLUMNS, MANY = 320, 80


@pytest.mark.long
@subcases("fmt", [*FORMATS, *GROUPED], ids=lambda fmt: fmt.label)
@subcases("setting", ["highest", "high", "medium"])
def test_many_rows_differ_by_what_the_setting_of_torch_allows(fmt, setting, onednn_from):
    """As on a CPU that multiplies bfloat16, whichever this one is."""
    onednn_from(16)
    weight, x = torch.randn(256, BOUND_COLUMNS), torch.randn(MANY, BOUND_COLUMNS)
    bias = torch.randn(256)
    encoded = fmt.encode(weight)
    stored, decoded = parts(encoded, fmt), fmt.decode(encoded)
    magnitudes = x.double().abs() @ decoded.double().abs().T
    float32 = BOUND_COLUMNS * 2.0**-23 * (magnitudes + 1)
    half = packed.bfloat16_roundings(fmt, weight.shape) * (2.0**-8 + 2.0**-15) * magnitudes
    with matmul_precision(setting):
        for given in (None, bias):
            y = torch.ops.chop.packed_linear(x, FLOAT, *stored, given, False)
            exact = F.linear(
                x.double(), decoded.double(), None if given is None else given.double()
            )
            allowed = float32 + half if setting == "medium" else float32
            assert ((y - exact).abs() <= allowed).all()
            in_full = torch.ops.chop.packed_linear(x, FLOAT, *stored, given, True)
            assert same(in_full, F.linear(x, decoded, given))
    if setting == "medium" and packed.find_reader(stored).tables.suits_bfloat16:
        assert ((y - exact).abs() > float32).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fmt", [MXInt(8), NVFP4(), *GROUPED], ids=lambda fmt: fmt.label)
def test_rows_of_half_precision_are_rounded_once(fmt, dtype, monkeypatch, onednn_from):
    """Where the CPU has no products of bfloat16, by those of float32."""
    monkeypatch.setattr(bfloat16, "multiplies_bfloat16", lambda: False)
    onednn_from(math.inf)
    weight, x = torch.randn(256, BOUND_COLUMNS) * 0.05, torch.randn(600, BOUND_COLUMNS).to(dtype)
    encoded, bias = fmt.encode(weight), torch.randn(256)
    stored, decoded = parts(encoded, fmt), fmt.decode(encoded).double()
    exact = F.linear(x.double(), decoded, bias.double())
    unit = torch.finfo(dtype).eps / 2
    bound = unit * exact.abs() + BOUND_COLUMNS * 2.0**-22 * (x.double().abs() @ decoded.abs().T + 1)
    for rows in (1, 7, 9, 300, 600):
        y = torch.ops.chop.packed_linear(x[:rows], FLOAT, *stored, bias, False)
        assert y.dtype == dtype and ((y - exact[:rows]).abs() <= bound[:rows]).all()


def test_a_compiled_layer_follows_the_switch(onednn_from):
    onednn_from(16)
    layer = pack(q.QuantLinear(320, 256, config={"weight": {"name": "mxint"}})).eval()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(MANY, 320)
    exact = F.linear(x, layer.weight, layer.bias)
    for setting in ("highest", "medium", "highest"):
        with torch.no_grad(), matmul_precision(setting):
            found = compiled(x)
            assert same(found, layer(x))
        assert ((found - exact).abs().max() > 1e-3) == (setting == "medium")


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize("name", ["mxint", "group_integer", "scale_integer"])
def test_a_row_has_one_result_whatever_the_number_of_rows(name, multiplies, monkeypatch):
    monkeypatch.setattr(bfloat16, "multiplies_bfloat16", lambda: multiplies)
    layer = pack(q.QuantLinear(320, 256, config={"weight": {"name": name, "width": 8}})).eval()
    x, weight = torch.randn(300, 320), layer.weight.double()
    exact = F.linear(x.double(), weight, layer.bias.double())
    bound = 320 * 2.0**-23 * (x.double().abs() @ weight.abs().T + 1)
    spaced = torch.zeros(300, 640)[:, ::2].copy_(x)
    with torch.inference_mode():
        for rows in (*range(1, 41), 63, 64, 65, 256, 257, 300):
            assert ((layer(x[:rows]) - exact[:rows]).abs() <= bound[:rows]).all(), rows
        for shaped in (x.view(4, 75, 320), x.view(2, 3, 50, 320), spaced, x.view(300, 1, 320)):
            assert ((layer(shaped).view(300, 256) - exact).abs() <= bound).all()
        assert ((layer(x[0]) - exact[0]).abs() <= bound[0]).all()
    for rows in (1, 40):
        given = x[:rows].clone().requires_grad_()
        layer(given).sum().backward()
        expected = weight.sum(0).float().expand(rows, -1)
        torch.testing.assert_close(given.grad, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "x_format",
    [
        ScaleInteger(8, granularity="channel"),
        BlockFP(8, block_size=(4, 16)),
        BlockFP(8, block_size=(4, 16), skip_first_dim=True),
        MXInt(8, block_dim=1),
    ],
    ids=lambda fmt: fmt.label,
)
@pytest.mark.parametrize("tokens", [3, 20])
def test_inputs_are_rounded_in_their_own_shape(x_format, tokens):
    fmt = MXInt(8)
    x = torch.randn(2, tokens, 512) * torch.logspace(-3, 3, tokens)[:, None]
    encoded = fmt.encode(torch.randn(256, 512))
    y = packed_linear(x, x_format, encoded, fmt)
    expected = F.linear(x_format.round(x), fmt.decode(encoded))
    assert (y - expected).norm(dim=-1).le(10 ** (-50 / 20) * expected.norm(dim=-1)).all()


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("fmt", [MXInt(8), ScaleInteger(8)], ids=lambda fmt: fmt.label)
def test_a_bias_may_be_strided_or_of_another_dtype(fmt, rows):
    encoded, x, bias = fmt.encode(torch.randn(256, 512)), torch.randn(rows, 512), torch.randn(512)
    expected = packed_linear(x, fmt, encoded, fmt, bias[::2].clone())
    found = packed_linear(x, fmt, encoded, fmt, bias[::2])
    assert same(found, expected)
    found = packed_linear(x, fmt, encoded, fmt, bias[::2].bfloat16())
    assert 0 < (found - expected).abs().max() < 0.05


def test_what_does_not_fit_is_refused_and_no_memory_beyond_is_read():
    fmt = MXInt(8)
    encoded, x = fmt.encode(torch.randn(256, 512)), torch.randn(3, 512)
    codes, scales, *others = parts(encoded, fmt)

    def linear(x=x, codes=codes, scales=scales, bias=None):
        stored = (codes, scales, *others)
        return torch.ops.chop.packed_linear(x, FLOAT, *stored, bias, False)

    for wrong in (
        {"x": x[:, :100]},
        {"x": torch.randn(3, 513)},
        {"x": x[0, :5]},
        {"x": torch.tensor(1.0)},
        {"x": x.long()},
        {"bias": torch.ones(255)},
        {"codes": codes[:-1]},
        {"scales": scales[:-1]},
        {"scales": None},
    ):
        with pytest.raises((RuntimeError, TypeError, AssertionError)):
            linear(**wrong)
    expected = linear()
    strided = linear(codes=codes.repeat_interleave(2)[::2])  # added in another order
    torch.testing.assert_close(strided, expected, rtol=0, atol=1e-4)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert linear(x=mode.from_tensor(x)).shape == (3, 256)
        with pytest.raises(RuntimeError, match=r"expected x \(\.\.\., 512\)"):
            linear(x=mode.from_tensor(x[:, :100]))


@pytest.mark.parametrize("shape", [(64, 64), (256, 512)])
def test_results_do_not_depend_on_what_was_called_before(shape, monkeypatch):
    fmt, x = MXInt(8), torch.randn(3, shape[1])
    encoded = fmt.encode(torch.randn(shape))
    y = torch.ops.chop.packed_linear(x, FLOAT, *parts(encoded, fmt), None, False)
    monkeypatch.setattr(reader, "is_ready", lambda: False)
    reader._fixed_reader.cache_clear()
    assert same(torch.ops.chop.packed_linear(x, FLOAT, *parts(encoded, fmt), None, False), y)


def test_products_of_float64_are_made_in_float64():
    fmt, x = MXInt(8), torch.randn(3, 512, dtype=torch.float64)
    encoded = fmt.encode(torch.randn(256, 512, dtype=torch.float64))
    y = torch.ops.chop.packed_linear(x, FLOAT, *parts(encoded, fmt), None, False)
    assert torch.equal(y, F.linear(x, fmt.decode(encoded)))


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_every_instruction_set_reads_and_multiplies_alike(name, loops, monkeypatch, small_ones):
    found = one_set(name, "packed", loops)
    monkeypatch.setattr("chop.kernels.cpu.reader.library", lambda: found)
    reader._fixed_reader.cache_clear()
    x = torch.randn(70, 96)
    for fmt in FORMATS:
        encoded = fmt.encode(torch.randn(33, 96))
        assert same(packed.decode(parts(encoded, fmt), x.dtype), fmt.decode(encoded))
        expected = F.linear(x, fmt.decode(encoded))
        for rows in (1, 3, 6, 9, 33, 70):
            y = packed.linear(x[:rows], FLOAT, parts(encoded, fmt), None)
            torch.testing.assert_close(y, expected[:rows], rtol=1e-4, atol=1e-4)
    reader._fixed_reader.cache_clear()


@pytest.mark.long
def test_the_operators_are_wellformed():
    fmt = MXInt(4)
    stored = parts(fmt.encode(torch.randn(6, 64)), fmt)
    torch.library.opcheck(torch.ops.chop.decode.default, (*stored, torch.float32))
    for rows in (2, 40):
        arguments = (torch.randn(rows, 64, requires_grad=True), FLOAT, *stored, torch.randn(6))
        torch.library.opcheck(torch.ops.chop.packed_linear.default, (*arguments, False))


@pytest.mark.parametrize("exact", [False, True])
def test_inputs_get_the_gradient_of_the_decoded_layer(exact):
    spec = QuantSpec(data_in=Integer(8, 4), weight=MXInt(8), gradient="clip")
    layer = q.QuantLinear(64, 12, config=spec).eval()
    twin = pack(layer, exact=exact).eval()
    x = (10 * torch.randn(2, 5, 64)).requires_grad_()
    expected = torch.autograd.grad(layer(x).square().sum(), [x, layer.bias])
    found = torch.autograd.grad(twin(x).square().sum(), [x, twin.bias])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
    assert (found[0] == 0).any()  # where the input saturates
    one = x.detach()[0, 0].requires_grad_()
    twin(one).sum().backward()
    assert one.grad.shape == (64,) and one.grad.any()


@pytest.mark.parametrize("rows", [1, 50])
def test_a_packed_layer_agrees_with_its_layer_in_every_setting(rows):
    spec = QuantSpec(data_in=MXInt(8), weight=MXInt(8), bias=Integer(8, 6), data_out=Integer(12, 6))
    layer = q.QuantLinear(320, 256, config=spec).eval()
    twin, exact = pack(layer).eval(), pack(layer, exact=True).eval()
    x = torch.randn(rows, 2, 320)[:, 0]  # not contiguous
    with torch.no_grad():
        expected = layer(x)
        assert same(exact(x), expected)
        assert (twin(x) - expected).abs().max() <= 2.0**-4
        with torch.autocast("cpu", torch.bfloat16):
            assert same(twin(x), layer(x))
        assert twin.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
        assert twin(x[:0].bfloat16()).shape == (0, 256)
    with pytest.raises(RuntimeError, match="dtype"):
        twin(x)
