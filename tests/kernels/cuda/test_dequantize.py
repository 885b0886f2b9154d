"""The CUDA C++ kernel: run on a CPU thread by thread, compiled by nvcc, run on a GPU."""

import ctypes
import dataclasses
import platform
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chop.base.files.digests import digest_beside
from chop.base.native import compiler
from chop.errors import ConfigError, UnavailableError
from chop.formats import MXFP, MXInt
from chop.kernels.cuda import dequantize as cuda
from chop.kernels.triton.rules import BlockLayout

HERE = Path(__file__).parent
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
NAN, INF = float("nan"), float("inf")
MXINT8 = MXInt(8)
# Less than a tile, several, with a rest; rows that do not divide into blocks.
SHAPES = [(7,), (40, 160), (3, 1000), (2, 3, 701), (9000, 1), ()]


def same_bits(y, expected):
    y, expected = y.cpu(), expected.cpu()
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    integers = INTEGERS[y.dtype]
    same = (y.view(integers) == expected.view(integers)) | (y.isnan() & expected.isnan())
    assert same.all(), (y[~same][:5], expected[~same][:5])


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The kernel's own source, compiled for the CPU with a few stand-ins for CUDA's headers."""
    if compiler() is None or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("needs a C++ compiler, for x86-64")
    path = tmp_path_factory.mktemp("cuda") / "kernel.so"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-mf16c", "-Wno-unknown-pragmas"]
    folders = [f"-I{HERE / 'on_cpu'}", f"-I{cuda.FOLDER}"]
    command = [compiler(), *flags, *folders, str(HERE / "on_cpu" / "run.cpp"), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(path))

    def run(encoded, fmt):
        y = torch.empty(encoded.shape, dtype=encoded.dtype)
        layout = BlockLayout.of(encoded.shape, fmt.groups.sizes[-1])
        arguments = [ctypes.c_void_p(x.data_ptr()) for x in (encoded.codes, encoded.scales, y)]
        sizes = [ctypes.c_uint32(size) for size in layout[1:]]
        kind = DTYPES.index(encoded.dtype)
        library.dequantize(*arguments, kind, ctypes.c_int64(y.numel()), *sizes)
        return y

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.long
def test_every_bit_is_the_reference_s(simulated, dtype):
    for shape in SHAPES:
        x = (torch.randn(shape) * torch.randn(shape).mul(3).exp()).to(dtype)
        edges = torch.tensor([0.0, -0.0, 1e-40, -(2.0**-126), 3.4e38, -3.4e38]).to(dtype)
        x.view(-1)[: len(edges)] = edges[: x.numel()]
        same_bits(simulated(MXINT8.encode(x), MXINT8), MXINT8.round(x))


@pytest.mark.parametrize("block_size", [1, 7, 32, 500])
@pytest.mark.long
def test_every_code_and_scale_in_blocks_of_any_size(simulated, block_size):
    fmt = MXInt(8, block_size=block_size)
    encoded = fmt.encode(torch.zeros(33, 517))
    codes, scales = (torch.randint(0, 256, t.shape).byte() for t in (encoded.codes, encoded.scales))
    scales[:2] = torch.tensor([0, 255])
    for dtype in DTYPES:
        encoded = dataclasses.replace(encoded, codes=codes, scales=scales, dtype=dtype)
        y = simulated(encoded, fmt)
        same_bits(y, fmt.decode(encoded))
        assert y.isnan().any() and y[~y.isnan()].isfinite().all()


def test_nvcc_keeps_everything_in_registers_and_shared_memory(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc, of the CUDA toolkit")
    source, flags = str(cuda.FOLDER / "mxint8.cu"), ["-std=c++17", "-O3", "-arch=sm_80"]
    told = subprocess.run(
        ["nvcc", *flags, "-Xptxas=-v", "-cubin", "-o", str(tmp_path / "a.cubin"), source],
        check=True, capture_output=True, text=True,
    ).stderr  # fmt: skip
    assert re.findall(r"(\d+) bytes stack frame", told) == ["0"] * 3
    assert all(int(size) <= 20 * 1024 + 64 for size in re.findall(r"(\d+) bytes smem", told))
    assert all(int(count) <= 32 for count in re.findall(r"Used (\d+) registers", told))


def test_what_is_missing_is_said_in_a_sentence(monkeypatch, tmp_path):
    from torch.utils import cpp_extension

    def finds(cuda_version, is_available, home):
        monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=cuda_version))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", home)
        return cuda.why_unavailable()

    assert finds(None, False, None).startswith("The CUDA C++ kernel needs a torch built for CUDA")
    encoded = MXINT8.encode(torch.ones(3))
    with pytest.raises(
        UnavailableError, match="needs a torch built for CUDA: this one, .*, is not"
    ):
        cuda.dequantize(encoded, MXINT8)
    assert "GPU: torch sees none" in finds("13.0", False, None)
    assert "install the CUDA toolkit 13.0, or set CUDA_HOME" in finds("13.0", True, str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "pip install ninja" in finds("13.0", True, str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert finds("13.0", True, str(tmp_path)) is None


@pytest.mark.parametrize("damage", ["cut", "no digest", "none"])
def test_a_damaged_library_is_built_again_also_after_a_kill(damage, monkeypatch, tmp_path, caplog):
    from torch.utils import cpp_extension

    library, builds = tmp_path / "chop_cuda.so", []

    def load(name, sources, build_directory, **_):
        assert not (tmp_path / "lock").exists()  # torch would wait for it
        if not library.exists():
            builds.append(name)
            (tmp_path / "mxint8.cuda.o").touch()
            library.write_bytes(bytes(1000))
        return "loaded"

    monkeypatch.setattr(cpp_extension, "load", load)
    assert cuda._loaded(tmp_path, library) == "loaded"
    (tmp_path / "lock").touch()
    if damage == "cut":
        library.write_bytes(bytes(500))
    elif damage == "no digest":
        digest_beside(library).unlink()
    assert cuda._loaded(tmp_path, library) == "loaded"
    assert len(builds) == 1 + (damage != "none") and library.stat().st_size == 1000
    assert ("is damaged" in caplog.text) is (damage != "none")
    assert cuda._loaded(tmp_path, library) == "loaded" and len(builds) < 3


@pytest.mark.parametrize("fmt", [MXInt(4), MXFP(8, 4), MXInt(8, block_dim=0)], ids=str)
def test_other_formats_are_refused(fmt):
    with pytest.raises(ConfigError, match="expected mxint of 8 bits in blocks along the last axis"):
        cuda.dequantize(fmt.encode(torch.ones(4, 40)), fmt)


@pytest.mark.gpu
def test_on_a_gpu():
    missing = cuda.why_unavailable()
    if missing:
        pytest.skip(missing)
    for shape in [*SHAPES, (0, 3)]:
        for dtype in DTYPES:
            x = torch.randn(shape, device="cuda").to(dtype)
            same_bits(cuda.dequantize(MXINT8.encode(x), MXINT8), MXINT8.round(x))
