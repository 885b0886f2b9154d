"""What fake-quantising costs, as a ratio to `torch.clone` of the same tensor.

Per format: the kernel in a new tensor (as quantised operators call it), the kernel into a tensor
that is there, and the readable reference in PyTorch alone. Beside them, what others offer. They
take turns with `clone`, so that a busy machine slows all of them; a ratio is the median over the
turns. A clone of a large tensor is mostly the cost of fresh memory, which is why writing to memory
that is there can cost a fraction of it.

python benchmarks/formats.py [--size 4096] [--repeat 7] [--threads 2] [--only mxint]
    [--no-reference]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    NumberFormat,
    ScaleInteger,
    Ternary,
)
from chop.kernels import KERNELS, fake_quantize
from chop.kernels.cpu.build import library
from chop.tables import markdown_table

Way = Callable[[Tensor], Tensor]
WAYS = ("native", "native, out=", "PyTorch alone")
FORMATS: list[NumberFormat] = [
    Integer(8, 4),
    MinifloatIEEE(8, 4),
    MinifloatIEEE(8, 5),
    MinifloatDenorm(8, 4),
    Log(8),
    Binary(),
    Binary(scaling_factor=True),
    Ternary(),
    Ternary(scaling_factor=True),
    ScaleInteger(8),
    ScaleInteger(8, granularity="channel"),
    ScaleInteger(4, granularity="group"),
    BlockFP(8),
    BlockMinifloat(8, 4),
    BlockLog(8),
    MXInt(8),
    MXInt(4),
    MXFP(8, 4),
    MXFP(6, 3),
    MXFP(4, 2),
    NVFP4(),
]


def torch_affine(x: Tensor) -> Tensor:
    """The operator of torch that is `integer 8.4`."""
    return torch.fake_quantize_per_tensor_affine(x, 2.0**-4, 0, -128, 127)


def torch_float8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """There and back."""
    return x.to(dtype).to(x.dtype)


def peers() -> Iterator[tuple[str, Way]]:
    """What is there of other libraries."""
    yield "torch.fake_quantize_per_tensor_affine", torch_affine
    yield "torch float8_e4m3fn cast", partial(torch_float8, dtype=torch.float8_e4m3fn)
    yield "torch float8_e5m2 cast", partial(torch_float8, dtype=torch.float8_e5m2)
    try:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
    except ImportError:
        return
    for dtype in (torch.float8_e4m3fn, torch.float4_e2m1fn_x2):

        def torchao_mx(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return MXTensor.to_mx(x, dtype, 32).dequantize(x.dtype)

        yield f"torchao MX {dtype}", torchao_mx


def seconds_of(way: Way, x: Tensor) -> float:
    """Wall time of one call, the release of its result included."""
    start = time.perf_counter()
    way(x)
    return time.perf_counter() - start


def ratio(way: Way, x: Tensor, repeat: int) -> float:
    """Median of the ratios to a clone, after one call of each that is not counted."""
    pairs = [(seconds_of(way, x), seconds_of(torch.clone, x)) for _ in range(repeat + 1)]
    return statistics.median(own / clone for own, clone in pairs[1:])


def row_of(number_format: NumberFormat, x: Tensor, repeat: int, reference: bool) -> dict[str, str]:
    """The three ways of a format."""
    out = torch.empty_like(x)
    is_native = KERNELS["cpu"].run(x, number_format, out)
    ways: tuple[Way | None, ...] = (
        number_format if is_native else None,
        (lambda x: fake_quantize(x, number_format, out)) if is_native else None,
        number_format.round if reference else None,
    )
    measured = {
        name: f"{ratio(way, x, repeat):.2f}" if way else "-"
        for name, way in zip(WAYS, ways, strict=True)
    }
    return {"format": number_format.label, **measured}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="formats whose text contains this")
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.size, options.size)
    print(f"{options.size} x {options.size} float32, {options.threads} threads; C++ kernels:")
    print(f"{library().detail}\n")
    chosen = [number_format for number_format in FORMATS if options.only in number_format.label]
    rows = [row_of(fmt, x, options.repeat, not options.no_reference) for fmt in chosen]
    rows += [
        {
            "format": name,
            **dict.fromkeys(WAYS, "-"),
            WAYS[0]: f"{ratio(way, x, options.repeat):.2f}",
        }
        for name, way in (peers() if not options.only else ())
    ]
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
