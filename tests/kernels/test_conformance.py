"""Every kernel gives the bits of its reference, whatever the format, the input and its layout."""

import ctypes
import dataclasses
import os
import re
import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chop.base import native
from chop.base.files.digests import digest_beside
from chop.errors import ConfigError
from chop.formats import BinaryResidual, Integer, MXInt, ScaleInteger, Ternary, reference
from chop.formats.statistic import Threshold
from chop.kernels import KERNELS, fake_quantize, fake_quantize_directly
from chop.kernels import measure as scales
from chop.kernels.cpu import build, measure
from chop.kernels.cpu import fake_quantize as rounding
from chop.kernels.cpu.fake_quantize import WORTH_COMPILING
from chop.kernels.plan import EVERY_BIT, EVERY_MAGNITUDE
from tests.fresh import printed_by
from tests.kernels.examples import (
    BINARY,
    DTYPES,
    EDGES,
    INF,
    NAN,
    NOT_TAKEN,
    TAKEN,
    inputs,
    params,
    same,
)
from tests.subcases import subcases

pytestmark = pytest.mark.usefixtures("loops")

BY_DEVICE = [
    pytest.param(kernel, marks=pytest.mark.gpu) if kernel.device == "cuda" else kernel
    for kernel in KERNELS.values()
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", BY_DEVICE, ids=lambda kernel: kernel.name)
@subcases("fmt", params(TAKEN))
def test_equals_the_reference(kernel, fmt):
    if kernel.device != "cpu" and not torch.get_device_module(kernel.device).is_available():
        pytest.skip(f"{kernel.name}: this machine has no {kernel.device} device")
    assert kernel.tolerance == 0.0
    for dtype in DTYPES:
        for x in inputs(dtype):
            out = torch.full_like(x, 77.0, device=kernel.device)
            is_taken = kernel.run(x.to(kernel.device), fmt, out)
            assert is_taken or kernel.device != "cpu"
            if is_taken:
                assert same(out.cpu(), kernel.reference(fmt, x)), (dtype, x.shape)
            else:
                assert (out == 77).all()


@subcases("fmt", params(TAKEN[::4] + TAKEN[-26:]))
def test_layout_and_overwriting_do_not_matter(fmt):
    x = torch.randn(4, 6, 5, 32)
    expected = fmt.round(x)
    for other in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT, x.clone()):
        assert same(fake_quantize(other, fmt), expected)
        assert fake_quantize(other, fmt).stride() == torch.empty_like(other).stride()
        out = torch.empty_like(x)
        assert fake_quantize(other, fmt, out) is out
        assert same(out, expected)
        assert fake_quantize(other, fmt, other) is other
        assert same(other, expected)
    slices = torch.randn(8, 6, 10, 64)[::2, :, 1::2, ::2]
    assert same(fake_quantize(slices, fmt), fmt.round(slices))
    gap = torch.zeros(4, 6, 5, 64)
    fake_quantize(slices, fmt, gap[..., ::2])
    assert same(gap[..., ::2], fmt.round(slices))
    assert (gap[..., 1::2] == 0).all()


@subcases("fmt", params(TAKEN[::5] + TAKEN[-26:]), kept=30)
@subcases("dtype", DTYPES)
def test_threads_change_nothing(fmt, dtype, threads):
    rows, line = torch.randn(1200, 257, dtype=dtype), torch.randn(300_003, dtype=dtype)
    rows[700, 3], line[5] = NAN, INF
    threads(3)
    several = [fake_quantize(x, fmt) for x in (rows, line)]
    threads(1)
    assert all(same(y, fmt.round(x)) for x, y in zip((rows, line), several, strict=True))
    assert same(fake_quantize(rows, fmt), several[0])


@pytest.mark.parametrize("fmt", params(NOT_TAKEN))
def test_the_rest_goes_to_the_reference(fmt):
    x = torch.randn(20, 32)
    out = torch.full_like(x, 77.0)
    assert not KERNELS["cpu"].run(x, fmt, out)
    assert (out == 77).all()
    torch.manual_seed(1)
    y = fake_quantize(x, fmt)
    torch.manual_seed(1)
    assert same(y, fmt.round(x))


MEASURING_MEANS = [
    fmt
    for fmt in TAKEN
    if fmt in (BINARY, Ternary()) or (getattr(fmt, "scaling_factor", False) and not fmt.scales)
]


@subcases("fmt", params([*MEASURING_MEANS, BinaryResidual(levels=3)]))
@subcases("roundoff", [1e-9, 0.01])
def test_means_that_are_not_certain_are_left_to_the_reference(fmt, roundoff, monkeypatch):
    for module in (measure, rounding):
        monkeypatch.setattr(module, "UNIT_ROUNDOFF", roundoff)
    asked = []
    for module, name in (
        (scales, "by_reference"),
        (rounding, "by_reference"),
        (reference, "scales_of_levels"),
        (Threshold, "of"),
    ):
        certain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=certain: asked.append(1) or f(*a))
    for x in (torch.randn(300, 33), torch.randn(2, 40_000), torch.randn(3, 35).bfloat16()):
        expected = fmt.round(x)
        asked.clear()
        assert same(fake_quantize(x, fmt), expected)
        assert same(fake_quantize(x, fmt, x.clone()), expected)
        assert asked or roundoff < 0.01


LINES = {
    "normal": torch.randn(1, 50_000),
    "far apart": torch.cat([torch.randn(1, 30_000), torch.randn(1, 20_000) * 1e9], -1),
    "alike": torch.full((1, 20_000), -3.0),
    "few values": torch.randint(-3, 4, (1, 9000)).float(),
    "one that matters": torch.zeros(1, 5000).index_fill(-1, torch.tensor([77]), 2.0),
    "many lines": torch.randn(40, 300),
}


@subcases("lines", LINES.values(), ids=LINES)
@subcases("count", [1, 3])
def test_order_statistics_are_those_of_sorting(lines, count, threads, loops):
    lines, statistics = lines.clone(), measure.NativeStatistics(loops)
    lines[:, :3] = torch.tensor([NAN, INF, -INF])
    finite = lines[:, 3:]
    threads(count)
    for mask, kept in ((EVERY_MAGNITUDE, finite.abs()), (EVERY_BIT, finite.clamp(min=0))):
        order = kept.sort(-1, descending=True).values
        for rank in (0, 1, 7, finite.size(1) // 2, finite.size(1) - 1):
            found = statistics.order_statistics(lines, mask, rank)
            assert torch.equal(found, order[:, rank : rank + 1]), rank
        assert (statistics.order_statistics(lines, mask, finite.size(1)) == 0).all()
    median = statistics.order_statistics(lines, EVERY_MAGNITUDE, measure.HALF)
    assert torch.equal(median, finite.abs().median(-1, keepdim=True).values)


def test_a_mean_between_two_floats_is_not_certain(loops):
    tie = torch.tensor([[1.0, 1 + 2**-23], [1.0, 1.0]])
    low, high = measure.NativeStatistics(loops).mean_bounds(tie)
    assert (low.float() == high.float()).tolist() == [[False], [True]]
    assert ((low <= tie.double().mean(1, True)) & (tie.double().mean(1, True) <= high)).all()
    assert same(fake_quantize(tie, BINARY), BINARY.round(tie))


def test_odd_inputs():
    fmt = Integer(8, 4)
    for x in (torch.empty(0), torch.empty(3, 0, 2), torch.randn(5).double()):
        assert not KERNELS["cpu"].run(x, fmt, torch.empty_like(x))
        assert torch.equal(fake_quantize(x, fmt), fmt.round(x))
    assert fake_quantize(torch.randn(3, requires_grad=True), fmt).requires_grad is False
    for out in (torch.empty(4), torch.empty(3, dtype=torch.float16)):
        with pytest.raises(ConfigError, match="out: expected \\(3,\\) torch.float32"):
            fake_quantize(torch.randn(3), fmt, out)


def test_the_operator_is_the_kernel(monkeypatch):
    seen = []
    kernel = KERNELS["cpu"]
    spy = dataclasses.replace(kernel, run=lambda *a: seen.append(a) or kernel.run(*a))
    monkeypatch.setitem(KERNELS, "cpu", spy)
    x = torch.randn(6, 32, requires_grad=True)
    y = MXInt(4)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert len(seen) == 1
    assert same(y.detach(), MXInt(4).round(x.detach()))
    assert torch.equal(gradient, torch.ones(6, 32))


def test_the_direct_way_is_taken_where_nobody_follows():
    fmt, x = Integer(4, 1), torch.tensor([0.26, 9.0, -0.1, NAN])
    expected = fmt.round(x)

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    names = []
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            assert same(fake_quantize_directly(x, fmt, "clip"), expected)
    with Seen():
        y = fake_quantize_directly(x, fmt, "clip")
    assert same(y, expected)
    assert names == [torch.ops.chop.fake_quantize]
    leaf = x[:2].clone().requires_grad_()
    fake_quantize_directly(leaf, fmt, "clip").sum().backward()
    assert leaf.grad.tolist() == [1.0, 0.0]
    traced = torch.fx.experimental.proxy_tensor.make_fx(
        lambda t: fake_quantize_directly(t, fmt, "identity")
    )(x)
    assert torch.ops.chop.fake_quantize.default in {node.target for node in traced.graph.nodes}
    compiled = torch.compile(
        lambda t: fake_quantize_directly(t, fmt, "identity"), fullgraph=True, backend="aot_eager"
    )
    assert same(compiled(x), expected)


@pytest.mark.parametrize("scale", [0.1, 0.125, 1 / 3, 3e-12, 2.0**-45, 1e-38, 1e30, 3e37])
@pytest.mark.parametrize(
    "width, is_signed", [(2, True), (4, False), (8, True), (8, False), (10, True)]
)
def test_codes_beside_ties_are_those_of_quotients(scale, width, is_signed):
    fmt = ScaleInteger(width, is_signed=is_signed, scales=(scale,))
    ties = (torch.arange(-(2**width), 2**width).double() + 0.5) * float(torch.tensor(scale))
    near = [ties.float()]
    for end in (-torch.inf, torch.inf):
        once = near[0].nextafter(torch.tensor(end))
        near += [once, once.nextafter(torch.tensor(end))]
    for x in (torch.cat(near), EDGES, torch.cat(near).clamp(-6e4, 6e4).half()):
        out = torch.empty_like(x)
        assert KERNELS["cpu"].run(x, fmt, out)
        assert same(out, fmt.round(x))
        again = x.clone()
        assert KERNELS["cpu"].run(again, fmt, again) and same(again, out)


@pytest.mark.long  # the compiler takes ten seconds for each; of packed weights both are short
@pytest.mark.parametrize("flags", [(), ("-march=x86-64-v3",)], ids=["baseline", "AVX2"])
def test_every_instruction_set_gives_the_same_bits(flags, monkeypatch):
    compiler = native.compiler()
    if flags and build.library().library.chop_instruction_set() == b"baseline":
        pytest.skip("this CPU has no AVX2")
    needed = (build.FOLDER / "fake_quantize.cpp",)
    sources = native.Sources("rounding", needed, build.SOURCES.headers)
    path = sources.compiled(compiler, (*build.FLAGS, "-DCHOP_ONE_INSTRUCTION_SET", *flags))
    loops = ctypes.CDLL(str(path))
    loops.chop_instruction_set.restype = ctypes.c_char_p
    assert loops.chop_instruction_set() == b"baseline"
    one_set = build.Build(loops, "")
    monkeypatch.setattr("chop.kernels.cpu.fake_quantize.library", lambda: one_set)
    monkeypatch.setattr("chop.kernels.cpu.fake_quantize._LINES", {})
    for fmt in TAKEN[::3] + TAKEN[-26:]:
        for x in inputs(torch.float32) + inputs(torch.bfloat16)[:8]:
            out = torch.empty_like(x)
            assert KERNELS["cpu"].run(x, fmt, out)
            assert same(out, fmt.round(x)), fmt.label


def test_nothing_is_compiled_for_small_tensors(monkeypatch):
    monkeypatch.setattr("chop.kernels.cpu.fake_quantize.is_ready", lambda: False)
    asked = []
    monkeypatch.setattr(
        "chop.kernels.cpu.fake_quantize.library",
        lambda: asked.append(1) or build.Build(None, "none"),
    )
    small, large = torch.randn(WORTH_COMPILING - 1), torch.randn(WORTH_COMPILING)
    assert same(fake_quantize(small, MXInt()), MXInt().round(small))
    assert not asked
    assert same(fake_quantize(large, MXInt()), MXInt().round(large))
    assert asked


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [(None, "no C\\+\\+ compiler"), ("false", "failed"), ("/no/such/compiler", "cannot be")],
)
def test_without_a_working_compiler_there_is_a_reason(compiler, reason, monkeypatch, tmp_path):
    found = shutil.which(compiler) or compiler if compiler else None
    monkeypatch.setattr(build, "compiler", lambda: found)
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    nothing = build._library.__wrapped__()
    assert nothing.library is None
    assert re.search(reason, nothing.detail)


def test_what_was_compiled_before_is_ready_for_small_tensors_too(monkeypatch, tmp_path):
    code = (
        "import torch, chop.kernels\n"
        "from chop.formats import Integer\n"
        "from chop.base import native\n"
        "from chop.kernels.cpu import build\n"
        "native.Sources._compile = lambda *a: print('compiled')\n"
        "y = Integer(4, 1)(torch.tensor([0.26, 9.0]))\n"
        "print(y.tolist(), build.is_loaded())"
    )

    def run():
        environment = {name: os.environ[name] for name in ("CHOP_CACHE", "PATH", "CXX")}
        return printed_by(f"import os; os.environ.update({environment!r})\n{code}").strip()

    kept = build.compiled(native.compiler(), (build.OPENMP,))
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", native.compiler())
    assert run() == "[0.5, 3.5] False" and not list(tmp_path.iterdir())
    shutil.copy(kept, tmp_path)
    assert run() == "[0.5, 3.5] False"  # nothing tells that it is whole
    shutil.copy(digest_beside(kept), tmp_path)
    assert run() == "[0.5, 3.5] True"
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("PATH", "")
    assert run() == "[0.5, 3.5] False"


def test_the_library_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    smallest = (build.FOLDER / "lowest.cpp",)
    monkeypatch.setattr(build, "SOURCES", dataclasses.replace(build.SOURCES, files=smallest))
    path = build.compiled(native.compiler(), ("-O0",))
    made = path.stat().st_ino
    assert build.compiled(native.compiler(), ("-O0",)) == path
    assert path.stat().st_ino == made
    assert {*tmp_path.iterdir()} == {path, digest_beside(path)}
