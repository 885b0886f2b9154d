"""Measurement of the faster packed product, its file, and what follows from it."""

import json
import math
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.formats import NVFP4, Float, MXInt, parse_format_string
from chop.kernels.cpu import bfloat16, crossovers, int8, packed, products
from chop.kernels.matmul_precision import allows_bfloat16, matmul_precision
from tests.kernels.coded import parts

THREADS = 3
SHAPES = ((3072, 768), (4096, 4096))
SMALL, LARGE = (math.prod(shape) for shape in SHAPES)
NAME, FLOAT = "products of a test", Float().key


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    monkeypatch.setattr(crossovers, "TABLES", {})
    monkeypatch.setattr(crossovers, "CROSSOVERS", {**crossovers.CROSSOVERS})
    crossovers._fewest_rows.cache_clear()
    yield tmp_path / crossovers.FILE
    crossovers._fewest_rows.cache_clear()


def crossover_with(faster, counter, is_supported=True):
    """Products of which oneDNN's is faster from a number of rows on, by weight."""

    def calls(shape, rows):
        counter.append((shape, rows))
        slow, fast = (lambda: time.sleep(2e-3)), (lambda: None)
        return (slow, fast) if rows >= faster[math.prod(shape)] else (fast, slow)

    each = crossovers.Crossover(NAME, calls, SHAPES, lambda: is_supported, "unsupported")
    crossovers._fewest_rows.cache_clear()
    return crossovers.register(each)


def rows_of(elements, threads=THREADS):
    return crossovers._fewest_rows(NAME, elements, threads)


def test_rows_are_those_from_which_it_stays_faster(empty_cache, monkeypatch):
    asked = []
    each = crossover_with({SMALL: math.inf, LARGE: 64}, asked)
    assert rows_of(SMALL) == math.inf and rows_of(LARGE) == 64
    # Weights between and beyond the measured ones have the entry of the nearest.
    assert rows_of(70_000) == math.inf and rows_of(2**28) == 64
    # A count at which oneDNN is slower ends the search: fewer rows are not measured.
    small, large = SHAPES
    assert asked == [(small, 256), (large, 256), (large, 128), (large, 64), (large, 32)]
    crossovers.TABLES[NAME, torch.get_num_threads()] = each.stored_table(THREADS)
    assert [each.is_used(large, rows) for rows in (1, 63, 64, 300)] == [False, False, True, True]
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not each.is_used(large, 300)


def test_a_stored_table_is_read_instead(empty_cache):
    crossover_with({SMALL: 16, LARGE: 256}, []).measure(THREADS)
    crossovers.TABLES.clear()
    asked = []
    crossover_with({SMALL: math.inf, LARGE: math.inf}, asked)
    assert rows_of(SMALL) == 16 and asked == []
    assert rows_of(SMALL, THREADS + 1) == math.inf and asked != []
    machines = json.loads(empty_cache.read_text())
    assert {len(name.split(", ")) for name in machines} == {6} and len(machines) == 2
    other = crossovers.Crossover("other", lambda shape, rows: (int, int), SHAPES, int, "")
    assert other.measure(THREADS).keys() == {SMALL, LARGE}
    assert {*json.loads(empty_cache.read_text())[crossovers._machine(THREADS)]} == {NAME, "other"}


@pytest.mark.parametrize("differs", ["processor_name", "instructions", "limit"])
def test_a_table_of_another_processor_is_not_read(empty_cache, differs, monkeypatch):
    each = crossover_with({SMALL: 16, LARGE: 16}, [])
    each.measure(THREADS)
    crossovers.TABLES.clear()
    assert each.stored_table(THREADS) == {SMALL: 16, LARGE: 16}
    crossovers.TABLES.clear()
    if differs == "processor_name":
        monkeypatch.setattr(crossovers, "processor_name", lambda: "Another Processor")
    elif differs == "instructions":
        monkeypatch.setattr(crossovers, "product_instructions", lambda: {"amx_other": True})
    else:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE2")
    assert each.stored_table(THREADS) is None


def test_an_entry_for_products_that_the_processor_lacks_is_ignored(empty_cache):
    crossover_with({SMALL: 16, LARGE: 16}, []).measure(torch.get_num_threads())
    assert crossovers.CROSSOVERS[NAME].is_used(SHAPES[0], 16)
    asked = []
    absent = crossover_with({SMALL: 16, LARGE: 16}, asked, is_supported=False)
    assert absent.stored_table(torch.get_num_threads()) == {SMALL: 16, LARGE: 16}
    assert not absent.is_used(SHAPES[0], 16) and asked == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"MACHINE": 3}',
        '{"MACHINE": {"A": 16, "B": 16}}',
        '{"MACHINE": {"NAME": 3}}',
        '{"MACHINE": {"NAME": {"1": 16}}}',
        '{"MACHINE": {"NAME": {"A": "x", "B": 16}}}',
        '{"MACHINE": {"NAME": {"A": 17, "B": 16}}}',
        '{"MACHINE": {"NAME": {"A": 16.0, "B": 16}}}',
        '{"MACHINE": {"NAME": {"A": true, "B": 16}}}',
    ],
)
def test_a_damaged_table_is_measured_again(empty_cache, text):
    names = {"MACHINE": crossovers._machine(THREADS), "NAME": NAME, "A": SMALL, "B": LARGE}
    for name, value in names.items():
        text = text.replace(f'"{name}"', json.dumps(str(value)))
    empty_cache.write_text(text)
    each = crossover_with({SMALL: 256, LARGE: 16}, [])
    assert each.stored_table(THREADS) is None
    assert rows_of(LARGE) == 16
    crossovers.TABLES.clear()
    assert each.stored_table(THREADS) == {SMALL: 256, LARGE: 16}


def test_a_table_that_cannot_be_stored_is_measured_once(empty_cache):
    empty_cache.mkdir()  # a folder in place of the file
    asked = []
    each = crossover_with({SMALL: math.inf, LARGE: math.inf}, asked)
    assert each.measure(THREADS) == each.stored_table(THREADS)
    assert rows_of(SMALL) == math.inf and len(asked) == 2


@pytest.mark.skipif(not int8.is_exact(), reason="oneDNN adds in 16 bits on this CPU")
def test_measured_integer_products_are_equal():
    state = torch.get_rng_state()
    loops, onednn = int8._calls((96, 1024), 16)
    assert torch.equal(loops(), onednn()) and len(loops().unique()) > 500
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measured_bfloat16_products_are_close(dtype, loops):
    by_loops, onednn = (call() for call in bfloat16._panel_calls(dtype, (96, 1024), 16))
    assert by_loops.dtype == onednn.dtype == dtype and len(onednn.unique()) > 100
    scale = by_loops.float().norm()
    assert (by_loops.float() - onednn.float()).norm() < 2.0**-7 * scale


@pytest.mark.long
def test_all_kinds_are_measured_within_seconds(empty_cache, loops):
    start = time.process_time()
    crossovers.measure_all()
    assert time.process_time() - start < 20  # two on a processor with vector instructions
    for name, each in crossovers.CROSSOVERS.items():
        table = each.stored_table(torch.get_num_threads())
        assert (table is not None) == each.is_supported(), name
        assert table is None or {*table} == {math.prod(shape) for shape in each.shapes}


FORMATS = [
    *(MXInt(8), MXInt(4), parse_format_string("scale_integer:width=8:granularity=channel")),
    *(parse_format_string("scale_integer:width=8"), NVFP4()),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_panels_give_exact_sums_of_small_integers(dtype, has_bias, loops, monkeypatch):
    """Sums of at most 8 bits have one result in any order, so panels cannot change it."""
    outputs, columns, fmt = 200, 96, MXInt(8)
    weight = torch.zeros(outputs, columns).bernoulli_(0.2)
    weight[:, 0] = 1
    x = torch.randint(-2, 3, (37, columns)).to(dtype)
    bias = torch.randint(-3, 4, (outputs,)).to(dtype) if has_bias else None
    stored = parts(fmt.encode(weight), fmt)
    found = packed.find_reader(stored)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert expected.abs().max() < 256 and len(expected.unique()) > 20
    for panel, chunk in [(1, 5), (128 * columns, 37), (2**19, 2048)]:
        monkeypatch.setattr(products, "PANEL", panel)
        monkeypatch.setattr(products, "PANEL_CHUNK", chunk)
        y = products.in_panels(found, x, stored, None if bias is None else bias.float())
        assert y.dtype == dtype and torch.equal(y.double(), expected), panel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_panels_have_the_documented_accuracy(fmt, dtype, loops, monkeypatch):
    monkeypatch.setattr(products, "PANEL", 1)  # 64 outputs each
    weight, x, bias = torch.randn(200, 320), torch.randn(40, 320).to(dtype), torch.randn(200)
    bias = bias.to(dtype).float()
    encoded = fmt.encode(weight)
    stored, values = parts(encoded, fmt), fmt.decode(encoded).double()
    magnitudes = F.linear(x.double().abs(), values.abs(), bias.double().abs())
    roundings = packed.bfloat16_roundings(fmt, weight.shape)
    bound = (roundings * (2.0**-8 + 2.0**-15) + 320 * 2.0**-23) * magnitudes
    y = products.in_panels(packed.find_reader(stored), x, stored, bias)
    exact = F.linear(x.double(), values, bias.double())
    assert ((y - exact).abs() <= bound).all()


@pytest.mark.skipif(not bfloat16._is_supported(), reason="oneDNN has no bfloat16 on this CPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_table_chooses_who_multiplies(dtype, loops, onednn_from, capfd):
    fmt = MXInt(8)
    weight, x = torch.randn(256, 320), torch.randn(40, 320).to(dtype)
    stored = parts(fmt.encode(weight), fmt)
    exact = F.linear(x.double(), fmt.round(weight).double())
    limit = 2.0**-6 * F.linear(x.double().abs(), fmt.round(weight).double().abs())
    used = {}
    for rows in (math.inf, 64, 32, 16):
        onednn_from(rows)
        capfd.readouterr()
        with matmul_precision("medium"), torch.backends.mkldnn.verbose(1):
            y = packed.linear(x, FLOAT, stored, None)
        used[rows] = "40x320:320x256" in capfd.readouterr().out
        assert y.dtype == dtype and ((y - exact).abs() <= limit).all()
    assert used[32] and used[16]
    if packed.find_reader(stored).few_rows >= 40:  # portable loops leave these rows to PyTorch
        assert not used[math.inf] and not used[64]


def test_float32_is_not_rounded_where_torch_does_not_allow_it(loops, onednn_from):
    onednn_from(16)
    fmt = MXInt(8)
    x, stored = torch.randn(40, 320), parts(fmt.encode(torch.randn(256, 320)), fmt)
    exact = packed.linear(x, FLOAT, stored, None)
    with matmul_precision("medium"):
        rounded = packed.linear(x, FLOAT, stored, None)
    if bfloat16._is_supported():
        assert 1e-3 < (rounded - exact).abs().max() < 1
    assert torch.equal(packed.linear(x, FLOAT, stored, None), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("faster", [None, "float32 products"])
def test_rows_of_any_layout_have_the_same_products(dtype, faster, loops, onednn_from, monkeypatch):
    onednn_from(math.inf)
    if faster is not None:
        tables = {key: {2**20: 16} for key in crossovers.TABLES if key[0] == faster}
        monkeypatch.setattr(crossovers, "TABLES", crossovers.TABLES | tables)
    fmt = MXInt(8)
    weight, bias = torch.randn(256, 320), torch.randn(256).to(dtype)
    stored, values = parts(fmt.encode(weight), fmt), fmt.round(weight).double()
    rows = torch.randn(40, 320).to(dtype)
    layouts = [rows, rows.t().contiguous().t(), rows.repeat_interleave(2, 1)[:, ::2]]
    for x in (*layouts, rows.view(2, 20, 320), rows[:1], rows[:, None]):
        y = packed.linear(x, FLOAT, stored, bias)
        expected = F.linear(x.double(), values, bias.double())
        magnitudes = F.linear(x.double().abs(), values.abs(), bias.double().abs())
        rounding = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
        if y is not None:  # left to PyTorch
            assert y.dtype == dtype and y.shape == expected.shape
            assert ((y - expected).abs() <= rounding[dtype] * magnitudes).all()


def test_weights_decoded_first_are_multiplied_in_float32(loops, onednn_from, monkeypatch):
    onednn_from(32)
    fmt, counted = MXInt(8), []
    x, stored = torch.randn(40, 320), parts(fmt.encode(torch.randn(256, 320)), fmt)
    in_float32 = bfloat16.in_float32
    monkeypatch.setattr(
        bfloat16, "in_float32", lambda *each: counted.append(len(each[1])) or in_float32(*each)
    )
    first = packed.linear(x, FLOAT, stored, None)
    assert counted == [40] and torch.equal(first, F.linear(x, packed.decode(stored, torch.float32)))
    assert packed.workspace_bytes(x, FLOAT, stored, None) == 4 * 256 * 320
    with matmul_precision("high"):  # PyTorch may round to tf32, and the loops do not
        packed.linear(x, FLOAT, stored, None)
    assert counted == [40] or packed.find_reader(stored).few_rows < 40


def test_modes_of_the_caller_do_not_change_a_measurement(empty_cache):
    made = []

    def calls(shape, rows):
        made.append(torch.empty(1) @ torch.empty(1, 1))
        return (lambda: time.sleep(2e-3)), (lambda: None)

    each = crossovers.Crossover(NAME, calls, ((64, 64),), lambda: True, "", precision="medium")
    with FakeTensorMode(), torch.autocast("cpu"), torch.device("meta"):
        each.measure(torch.get_num_threads())
    assert {(type(x), x.dtype, x.device.type) for x in made} == {
        (torch.Tensor, torch.float32, "cpu")
    }
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("kind", ["float32 products", "float32 at medium precision"])
def test_each_kind_is_measured_at_its_precision(kind, empty_cache, monkeypatch):
    seen, each = set(), crossovers.CROSSOVERS[kind]

    def calls(shape, rows):
        seen.add(allows_bfloat16())
        return (lambda: None), (lambda: time.sleep(2e-3))

    with matmul_precision("highest" if "medium" in kind else "medium"):
        replace(each, calls=calls).measure(THREADS)
    assert seen == {"medium" in kind}
