"""The kernels on a machine without a GPU: in Triton's interpreter, and through its compiler."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chop.base.installed import misfit
from chop.formats import MXFP, Integer, MXInt
from tests.fresh import printed_by

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("fake_quantize", 8),
        ("linear", 12),
        ("dequantize", 5),
        ("softmax", 16),
    ],
)
@pytest.mark.long  # the gate compiles the kernels
def test_kernels_in_the_interpreter(triton, name, least):
    if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available():
        pytest.skip("the kernels are tested in this process")
    file = str(HERE / f"test_{name}.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", file],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least
    operators = int(name in ("fake_quantize", "dequantize"))
    assert operators == ("1 skipped" in done.stdout)  # the operators themselves need a GPU


def test_importing_chop_does_not_import_triton():
    assert printed_by("import chop.nn, sys; print('triton' in sys.modules)") == "False\n"


@pytest.fixture
def compiled(triton, monkeypatch, tmp_path):
    """The kernels that a call would run on NVIDIA's compute capability 9.0, compiled instead."""
    if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available():
        pytest.skip("the kernels are run in this process")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    def compile_only(kernel, *args, grid, warmup, **options):
        kernels.append(run(kernel, *args, grid=grid, warmup=True, **options))

    def call(function, *args):
        kernels.clear()
        function(*args)
        return kernels[-1]

    kernels, run, target = [], JITFunction.run, GPUTarget("cuda", 90, 32)
    device = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device=None: 0,
        get_current_target=lambda: target,
    )
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    driver.set_active(device)
    yield call
    driver.set_active(None)


def instructions(kernel):
    """PTX, of which no instruction takes subnormal numbers for zero."""
    assert ".ftz" not in kernel.asm["ptx"]
    assert kernel.metadata.shared <= 99 * 1024
    return kernel.asm["ptx"]


@pytest.mark.parametrize("fmt", [Integer(8, 4, floor=True), MXFP(4, 2)], ids=lambda fmt: fmt.label)
@pytest.mark.sampled(1)
def test_fake_quantizers_move_sixteen_bytes_at_a_time(compiled, fmt):
    from chop.kernels.triton.fake_quantize import fake_quantize

    x = torch.randn(16, 96, dtype=torch.bfloat16)
    ptx = instructions(compiled(fake_quantize, x, fmt, torch.empty_like(x)))
    assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx
    assert "ld.global.b16" not in ptx and "st.global.b16" not in ptx


def test_decoding_reads_and_writes_words(compiled):
    from chop.kernels.triton.dequantize import dequantize

    packed = MXInt(4).encode(torch.randn(16, 96, dtype=torch.bfloat16))
    ptx = instructions(compiled(dequantize, packed, MXInt(4)))
    assert "ld.global.v2.b32" in ptx and "st.global.v4.b32" in ptx


def test_packed_products_read_words_and_convert_no_integer(compiled):
    from chop.kernels.triton.linear import linear

    packed = MXInt(4).encode(torch.randn(64, 512))
    x = torch.randn(64, 512, dtype=torch.bfloat16)
    ptx = instructions(compiled(linear, x[:1], packed, MXInt(4)))
    # Triton 3.7, which torch's builds for CUDA bring along, reads the same codes byte by byte.
    assert "ld.global.v2.b32" in ptx or misfit("triton>=3.9")
    assert "cvt.rn.f32" not in ptx  # an eighth of the rate of additions
    large = MXInt(8, block_size=256)
    instructions(compiled(linear, x, large.encode(torch.randn(64, 512)), large))


BYTES_MOVED = re.compile(r"@?%?\w* ?(ld|st)\.global(?:\.v(\d))?\.b(\d+)")


def bytes_moved(kernel):
    """What a thread reads and what it writes, by the instructions."""
    moved = {"ld": 0, "st": 0}
    for way, vector, bits in BYTES_MOVED.findall(kernel.asm["ptx"]):
        moved[way] += int(vector or 1) * int(bits) // 8
    return moved["ld"], moved["st"]


@pytest.mark.parametrize("columns", [128, 1000, 4096, 16384])
@pytest.mark.sampled(3)
def test_softmax_reads_and_writes_once_and_keeps_rows_in_registers(compiled, columns):
    from chop.kernels.triton.softmax import softmax

    kernel = compiled(softmax, torch.randn(64, columns))
    threads = 32 * kernel.metadata.num_warps
    tile = 4 * max(4096, 2 ** (columns - 1).bit_length())
    assert bytes_moved(kernel) == (tile // threads, tile // threads)
    assert ".local" not in kernel.asm["ptx"]
    assert ("ld.global.v4.b32" in kernel.asm["ptx"]) == (columns % 16 == 0)


def test_softmax_of_long_rows_has_reads_under_way(compiled):
    from chop.kernels.triton.softmax import softmax

    ptx = compiled(softmax, torch.randn(4, 2**17, dtype=torch.bfloat16)).asm["ptx"]
    assert "cp.async" in ptx and "st.global.v4.b32" in ptx
