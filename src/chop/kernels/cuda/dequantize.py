"""Decoding of packed MXINT8 by CUDA C++, bit-identical to `NumberFormat.decode`.

Bytes moved per element: 1 + 1/k to read a code and its share of a scale, and 4 (float32) or 2
(bfloat16, float16) to write, as in the Triton kernel. `mxint8.cuh` holds the shared code.
"""

from __future__ import annotations

import shutil
import stat
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.files import build_lock
from chop.base.files.digests import find_damage, write_digest
from chop.base.hub import cache_folder
from chop.base.native import is_trusted, remove_damaged
from chop.errors import ConfigError, UnavailableError
from chop.formats import Encoded, NumberFormat
from chop.kernels.triton.rules import (
    BlockLayout,
    CodeRule,
    block_size_along_rows,
    code_rule,
    decodes,
)

NAME = "chop_cuda"
FOLDER = Path(__file__).parent
SOURCES = (FOLDER / "binding.cpp", FOLDER / "mxint8.cu")
ALIGNMENT = 16  # bytes of the widest load
LARGEST_ROW = 2**31
MXINT8 = CodeRule(8, True, 2.0**-6, 0, 0, False)


def why_unavailable() -> str | None:
    """Returns the missing requirement for building or running the kernel, or None."""
    from torch.utils import cpp_extension

    need = "The CUDA C++ kernel needs"
    if torch.version.cuda is None:
        return f"{need} a torch built for CUDA: this one, {torch.__version__}, is not."
    if not torch.cuda.is_available():
        return f"{need} an NVIDIA GPU: torch sees none."
    home = cpp_extension.CUDA_HOME
    if home is None or not (Path(home) / "bin" / "nvcc").exists():
        return (
            f"{need} nvcc: install the CUDA toolkit {torch.version.cuda}, or set CUDA_HOME to it."
        )
    if shutil.which("ninja") is None:
        return f"{need} ninja to be built: pip install ninja."
    return None


def dequantize(encoded: Encoded, number_format: NumberFormat) -> Tensor:
    """Returns `number_format.decode(encoded)`. The first call compiles for about a minute.

    Args:
        encoded: result of `number_format.encode` on the GPU; float32, bfloat16 or float16.
        number_format: MXINT8 in blocks along the last axis.

    Raises:
        ConfigError: if the format is not supported.
        UnavailableError: if the kernel cannot be built.
    """
    shape, codes, scales = encoded.shape, encoded.codes, encoded.scales
    if not takes(number_format, len(shape), encoded.dtype):
        raise ConfigError(
            f"{number_format.label} in {encoded.dtype}: expected mxint of 8 bits in blocks along "
            "the last axis, of float32, bfloat16 or float16; use the format's `decode`."
        )
    block_size = block_size_along_rows(number_format, len(shape))
    assert scales is not None and block_size is not None
    missing = why_unavailable()
    if missing:
        raise UnavailableError(missing)
    y = torch.empty(shape, dtype=encoded.dtype, device=codes.device)
    if y.numel() == 0:
        return y
    layout = BlockLayout.of(shape, block_size)
    if layout.row_size > LARGEST_ROW:
        raise ConfigError(f"expected rows of up to {LARGEST_ROW} numbers, got {layout.row_size}.")
    codes = codes.contiguous()
    codes = codes if codes.data_ptr() % ALIGNMENT == 0 else codes.clone()
    _extension().dequantize(codes, scales.contiguous(), y, *layout[1:])
    return y


def takes(number_format: NumberFormat, rank: int, dtype: torch.dtype) -> bool:
    """Returns True for MXINT8 in blocks along the last axis of a tensor of that rank."""
    return code_rule(number_format) == MXINT8 and decodes(number_format, rank, dtype)


def _loaded(folder: Path, library: Path) -> Any:
    """Returns the kernel; rebuilds a library that differs from the recorded build."""
    from torch.utils import cpp_extension

    with build_lock(library):
        (folder / "lock").unlink(missing_ok=True)  # torch would wait for the lock of a killed build
        if library.exists() and (damage := find_damage(library)):
            remove_damaged(library, damage)
            for made in folder.glob("*.o"):  # object files of the same build may be damaged too
                made.unlink()
        loaded = cpp_extension.load(
            NAME,
            [str(source) for source in SOURCES],
            extra_cuda_cflags=["-O3"],
            build_directory=str(folder),
        )
        if library.exists() and find_damage(library):
            write_digest(library, library)
    return loaded


@cache
def _extension() -> Any:
    folder = cache_folder() / f"cuda-torch{torch.__version__}"
    folder.mkdir(exist_ok=True, mode=0o700)
    if not is_trusted(folder, stat.S_ISDIR):
        raise UnavailableError(
            f"the CUDA C++ kernel is built in '{folder}', which another user can write; CHOP_CACHE "
            "names another folder"
        )
    try:
        return _loaded(folder, folder / f"{NAME}.so")
    except (RuntimeError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise UnavailableError(f"the CUDA C++ kernel could not be built: {reason}") from error
