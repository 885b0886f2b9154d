"""Formats composed of known parts need nothing but their class: no other file knows them."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.formats import (
    REGISTRY,
    QuantSpec,
    from_key,
    get_format,
    parse_format,
    parse_format_string,
    reference,
)
from chop.kernels import KERNELS, fake_quantize
from chop.kernels.codes import Packed
from chop.kernels.cpu import build
from chop.kernels.cpu.reader import find_reader
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear, modules
from chop.nn.quantized.modules import linear
from chop.testing import formats as checks
from tests.formats.composed import (
    DECODED,
    KINDS,
    SCATTERED,
    ChannelFixed,
    CombE4M3,
    RowInt8BFloat16,
    TensorE3M2,
)
from tests.formats.examples import ALL
from tests.kernels.examples import DTYPES, inputs, same
from tests.passes.conftest import with_metadata
from tests.subcases import subcases

OUTPUTS, COLUMNS = 256, 320


def every_kind(kept=None):
    return subcases("kind", KINDS, ids=lambda kind: kind.name, kept=kept)


@pytest.fixture(autouse=True)
def _registered():
    if build.library().library is None:
        pytest.skip(build.library().detail)
    REGISTRY.update({kind.name: kind for kind in KINDS})
    yield
    for kind in KINDS:
        del REGISTRY[kind.name]
        for home in (modules, linear):
            vars(home).pop(f"Linear{kind.__name__}", None)
    from_key.cache_clear()


def packed_layer(fmt, columns=COLUMNS, exact=False):
    layer = QuantLinear.from_float(nn.Linear(columns, OUTPUTS), QuantSpec(weight=fmt)).eval()
    return layer, pack(layer, exact=exact).eval()


def test_no_registered_format_is_composed_alike():
    def parts(layout):
        return layout.element, type(layout.groups), type(layout.scaling), layout.overflow

    known = [parts(fmt.layout()) for fmt in ALL if fmt.layout() is not None]
    assert not [kind.name for kind in KINDS if parts(kind().layout()) in known]


@subcases("check", checks.CHECKS, ids=lambda check: check.name, kept=30)
@every_kind()
def test_conformance(check, kind):
    if check.applies(kind()):
        check.run(kind())


def test_most_checks_are_asked_of_most():
    asked = {kind: sum(check.applies(kind()) for check in checks.CHECKS) for kind in KINDS}
    assert min(asked.values()) >= 13


@every_kind()
@subcases("dtype", DTYPES, ids=str)
def test_the_loops_give_the_bits_of_the_reference(kind, dtype):
    fmt, run = kind(), KERNELS["cpu"].run
    for x in inputs(dtype):
        out, mask = torch.full_like(x, 77.0), torch.empty_like(x, dtype=torch.bool)
        expected = fmt.round(x)
        assert run(x, fmt, out) and same(out, expected), x.shape
        assert run(x, fmt, out, mask) and same(out, expected), x.shape
        assert torch.equal(mask, fmt.saturates(x)), x.shape
        assert run(x, fmt, x) and same(x, expected), "in place"


@every_kind()
def test_neither_order_in_memory_nor_threads_matter(kind):
    fmt, x = kind(), torch.randn(4, 6, 5, 64)
    expected = fmt.round(x)
    for other in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT, x[::2, :, 1:]):
        assert same(fake_quantize(other, fmt), fmt.round(other))
    assert same(fake_quantize(x, fmt, x.clone()), expected)
    rows = torch.randn(1200, 257)
    rows[700, 3] = torch.nan
    torch.set_num_threads(3)
    try:
        several = fake_quantize(rows, fmt)
    finally:
        torch.set_num_threads(1)
    assert same(several, fmt.round(rows)) and same(fake_quantize(rows, fmt), several)


@every_kind(kept=3)
def test_the_loops_are_many_times_as_fast_as_the_reference(kind):
    """In turns, in one process; groups that do not lie in one piece are moved there and back.

    Loops that a processor cannot run on vectors are ahead by less.
    """
    fmt, x, out, times = kind(), torch.randn(1024, 1024), torch.empty(1024, 1024), ([], [])
    ways = (lambda: KERNELS["cpu"].run(x, fmt, out), lambda: fmt.round(x))
    for way, spent in 4 * list(zip(ways, times, strict=True)):
        start = time.perf_counter()
        way()
        spent.append(time.perf_counter() - start)
    on_vectors = build.BASELINE not in build.library().detail
    least = 4 if on_vectors and kind is not CombE4M3 else 1.5
    assert min(times[1]) > least * min(times[0])


@every_kind()
def test_a_packed_layer_multiplies_by_its_codes(kind, monkeypatch):
    fmt = kind()
    layer, twin = packed_layer(fmt)
    stored = twin.encoded("weight")
    packed = Packed(stored.codes, stored.scales, stored.tensor_scale, stored.shape, fmt.key)
    weight, x = fmt.round(layer.weight), torch.randn(3, COLUMNS)
    assert same(fmt.decode(stored), weight) and same(twin.weight, weight)
    assert twin.packed_bits("weight") == pytest.approx(fmt.bits(weight.shape), abs=1e-3)
    assert (find_reader(packed) is None) == (kind in DECODED)
    asked = []
    decode = reference.decode
    monkeypatch.setattr(reference, "decode", lambda *a: asked.append(1) or decode(*a))
    with torch.no_grad():
        for rows in (x, torch.randn(40, COLUMNS)):
            y, exact = twin(rows), rows.double() @ weight.double().T + layer.bias.double()
            if len(rows) == 3:
                # Sums of float32 products, in any order: Higham 2002, section 3.1.
                bound = COLUMNS * 2.0**-23 * (rows.double().abs() @ weight.double().abs().T + 1)
                assert ((y - exact).abs() <= bound).all()
            assert (y - exact).norm() < 10 ** (-50 / 20) * exact.norm()
        assert bool(asked) == (kind in DECODED)
        in_full = pack(layer, exact=True).eval()
        assert same(in_full(x), F.linear(x, weight, layer.bias)) and same(in_full(x), layer(x))


@every_kind()
def test_rows_that_are_kept_apart_are_decoded_by_themselves(kind):
    fmt, x, index = kind(), torch.randn(12, COLUMNS), torch.tensor([3, 0, 7])
    is_apart = fmt.is_row_separable(x.shape)
    assert is_apart == (kind is CombE4M3 or kind not in (*SCATTERED, TensorE3M2))
    if is_apart:
        assert same(fmt.decode(fmt.encode(x).take_rows(index)), fmt.round(x)[index])


@every_kind()
def test_its_name_makes_formats_and_operators(kind):
    assert get_format(kind.name) is kind and parse_format({"name": kind.name}) == kind()
    assert parse_format_string(kind.name) == kind() == from_key(kind().key)
    cls = getattr(modules, f"Linear{kind.__name__}")
    assert cls is getattr(linear, f"Linear{kind.__name__}")
    x, layer = torch.randn(4, 32), cls(32, 8, bias=False, config={})
    torch.testing.assert_close(layer(x), kind().round(x) @ kind().round(layer.weight).T)


IN_INTEGERS = (ChannelFixed, RowInt8BFloat16)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.sampled(1)
def test_export_to_onnx(kind, tmp_path):
    pytest.importorskip("onnxruntime")
    from tests.onnx_runs import run

    model = nn.Sequential(nn.Linear(32, 8)).eval()
    mg = with_metadata(MaseGraph(model, dummy_in={"input": torch.randn(3, 32)}))
    config = {"by": "type", "linear": {"config": {"weight": {"name": kind.name}}}}
    mg, _ = passes.quantize_transform_pass(mg, config)
    has_integers = kind in IN_INTEGERS
    settings = {"path": tmp_path / "model.onnx", "float_fallback": not has_integers}
    _, info = passes.export_onnx_interface_pass(mg, settings)
    assert bool(info["fallback"]) != has_integers
    x = torch.randn(3, 32)
    y = run(info["path"], input=x)
    torch.testing.assert_close(y, mg.model(x), rtol=1e-4, atol=1e-4)
