"""The steps of `gpu.py`: each yields tables as they are measured, by title.

Every step runs on a CPU too, at its smallest size: Triton kernels then run in Triton's interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from cases import FORMATS
from gpu_place import Place, Tables
from torch import Tensor, nn

from chop.bench import Comparison, Variant, compare
from chop.bench.clock import clock_for
from chop.bench.record import format_ratio, format_seconds
from chop.bench.roofline import copy_bytes_per_second, measured_roofline
from chop.formats import NumberFormat
from chop.kernels.base import KERNELS, fake_quantize
from chop.kernels.triton.register import is_installed
from chop.kernels.triton.rules import takes

SHARE_OF_COPY, SHARE_OF_FLOOR, TIMES_CUBLAS = 0.85, 0.8, 1.1
"""Goals: of kernels that move bytes, of one row's product, and of many rows'."""
LONGEST_SHARED_ROW = 16384
DECODED = ("mxint8", "mxint4", "mxfp8", "mxfp4")


def ceilings(place: Place) -> Tables:
    """What the device can do at most."""
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        found = measured_roofline(dtype, place.device)
        rate = f"{found.flops_per_second / 1e12:.1f} TFLOP/s"
        copied = f"{found.bytes_per_second / 1e9:.0f} GB/s"
        rows.append({"dtype": str(dtype), "copy, read and written": copied, "products": rate})
    yield "Ceilings, measured", rows


def fake_quantizers(place: Place) -> Tables:
    """Fake-quantize in every format, beside a copy of the same tensor."""
    shape = (8, 96) if place.is_dry else (8192, 8192)
    for dtype in place.in_time((torch.bfloat16, torch.float32)):
        x = torch.randn(shape, device=place.device).to(dtype)
        rows = [_rounding_row(x, fmt, place) for fmt in place.in_time(FORMATS, len(FORMATS))]
        yield f"Fake-quantize, {shape[0]} x {shape[1]} {dtype}", rows


def _rounding_row(x: Tensor, number_format: NumberFormat, place: Place) -> dict[str, Any]:
    out = torch.empty_like(x)
    ways = {
        "copy": partial(out.copy_, x),
        "operator": partial(fake_quantize, x, number_format, out),
    }
    if place.is_dry and is_installed() and takes(number_format, x.dtype):
        from chop.kernels.triton.fake_quantize import fake_quantize as interpreted

        ways["Triton"] = partial(interpreted, x, number_format, out)
    found = compared(ways, place, outputs=False)
    kernel = KERNELS[place.device.type]
    has_kernel = kernel.run(x, number_format, out, None, None)
    part = x[:64].contiguous()
    is_exact = torch.equal(
        fake_quantize(part, number_format).cpu(), fake_quantize(part.cpu(), number_format)
    )
    share = found["operator"].ratio.median
    return {
        "format": number_format.label,
        "kernel": kernel.name if has_kernel else "none: operations of PyTorch",
        "time": format_seconds(found["operator"].seconds),
        "of a copy": f"{share:.0%}",
        f"{SHARE_OF_COPY:.0%}": reached(share >= SHARE_OF_COPY) if has_kernel else "",
        "equal to the CPU's": "yes" if is_exact else "NO",
    }


def decoding(place: Place) -> Tables:
    """Decoding packed weights by Triton and CUDA C++."""
    from chop.studies.decoding import TORCH, compare_decoding

    shape = (32, 96) if place.is_dry else (4096, 11008)
    for dtype in place.in_time((torch.bfloat16, torch.float32)):
        weight = (torch.randn(shape, device=place.device) * 0.02).to(dtype)
        rows = []
        for name in place.in_time(DECODED):
            found = compare_decoding(weight, name, seconds=place.seconds, device=place.device)[1]
            for row in (x for x in found if x.format and x.timed_on == weight.numel()):
                goal = reached(row.share_of_copy >= SHARE_OF_COPY)
                goal = "" if row.measured.name == TORCH else goal
                rows.append({**row.formatted(), f"{SHARE_OF_COPY:.0%}": goal})
        yield f"Decoding {shape[0]} x {shape[1]} to {dtype}", rows
    if place.is_dry and is_installed():
        yield "Decoding in Triton's interpreter", [_interpreted(name) for name in DECODED]


def _interpreted(name: str) -> dict[str, Any]:
    from chop.kernels.triton.dequantize import dequantize
    from chop.kernels.triton.linear import linear
    from chop.studies.decoding import FORMATS as BY_NAME

    number_format, x = BY_NAME[name], torch.randn(3, 96)
    encoded = number_format.encode(torch.randn(8, 96))
    weight = number_format.decode(encoded)
    difference = linear(x, encoded, number_format) - x @ weight.T
    same = torch.equal(dequantize(encoded, number_format), weight)
    return {"format": name, "same bits": same, "difference": difference.abs().max().item()}


def products(place: Place) -> Tables:
    """Products with packed weights: one row, and up to 4,096.

    The floor of one row is judged where codes are more than the cache holds: repeated calls read a
    smaller weight from there.
    """
    from chop.studies.packed_product import FUSED, compare_products

    shapes = [(32, 96)] if place.is_dry else [(4096, 4096), (11008, 4096), (16384, 16384)]
    rate = copy_bytes_per_second(place.device, clock_for(place.device, 1, None))
    for shape in place.in_time(shapes):
        weight = (torch.randn(shape, device=place.device) * 0.02).bfloat16()
        how = {"seconds": place.seconds, "device": place.device}
        rows = []
        for count in place.in_time((1, 16, 128, 512, 4096)):
            for row in compare_products(weight, DECODED, count, rate, **how)[1]:
                goal = ""
                if row.way == FUSED and count == 1 and row.weight_bytes > 2 * cache_bytes(place):
                    goal = f"{SHARE_OF_FLOOR:.0%}: {reached(row.share_of_copy >= SHARE_OF_FLOOR)}"
                if row.way == FUSED and count >= 512:
                    is_fast = 1 / row.measured.ratio.median <= TIMES_CUBLAS
                    goal = f"{TIMES_CUBLAS}x: {reached(is_fast)}"
                rows.append({**row.formatted(), "goal": goal})
        yield f"Products with a weight of {shape[0]} x {shape[1]}, beside bfloat16", rows
        yield f"The same of torchao, {shape[0]} x {shape[1]}", [*_torchao(weight, place)]


def cache_bytes(place: Place) -> int:
    """Of the last level; 0 in a dry run."""
    return 0 if place.is_dry else torch.cuda.get_device_properties(place.device).L2_cache_size


def _torchao(weight: Tensor, place: Place) -> Iterator[dict[str, Any]]:
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        yield {"rows": "", "way": f"torchao is not there: {error}", "times as fast": ""}
        return
    layer = nn.Linear(weight.size(1), weight.size(0), bias=False)
    layer.weight = nn.Parameter(weight)
    peer = nn.Sequential(copy.deepcopy(layer))
    quantize_(peer, Int8WeightOnlyConfig())
    for count in place.in_time((1, 16, 128, 512, 4096)):
        torch._dynamo.reset()
        compiled = torch.compile(peer, mode="max-autotune-no-cudagraphs")
        x = torch.randn(count, weight.size(1), device=place.device).bfloat16()
        ways = {"bfloat16": partial(layer, x), "int8 weights, compiled": partial(compiled, x)}
        found = compared(ways, place, outputs=False, cuda_graph=True)
        for each in found:
            yield {"rows": count, "way": each.name, "times as fast": format_ratio(each.ratio)}


def softmax(place: Place) -> Tables:
    """Fused softmax beside torch's and torch.compile's."""
    from chop.studies.settings import BenchSoftmaxConfig
    from chop.studies.softmax import TRITON, bench_softmax

    shapes = [f"{2**26 // n}x{n}" for n in (1024, 16384, 131072)]
    for dtype in place.in_time(("float32", "bfloat16")):
        rows = []
        for shape in place.in_time(shapes):
            found = bench_softmax(BenchSoftmaxConfig(shapes=(shape,), dtypes=(dtype,), **place.how))
            for row in found.rows:
                has_goal = row.measured.name == TRITON and row.case.columns <= LONGEST_SHARED_ROW
                goal = reached(row.share_of_copy >= SHARE_OF_COPY) if has_goal else ""
                rows.append({**row.formatted(), f"{SHARE_OF_COPY:.0%}": goal})
            rows += found.interpreted if place.is_dry else ()
        yield f"Softmax in {dtype}", [row for row in rows if "way" in row]


def attention(place: Place) -> Tables:
    """Attention written out and fused, with the course's table."""
    from chop.studies.attention import bench_attention
    from chop.studies.settings import BenchAttentionConfig

    sizes = {"shapes": ("8x12x512x64", "4x16x4096x128"), "masks": ("none", "causal")}
    for dtype in place.in_time(("float32", "bfloat16")):
        chosen = {} if place.is_dry else sizes
        config = BenchAttentionConfig(dtypes=(dtype,), **chosen, **place.how)
        yield from bench_attention(config).tables().items()


def linear(place: Place) -> Tables:
    """Linear and ReLU written out and fused, with the course's table."""
    from chop.studies.linear import bench_linear
    from chop.studies.settings import BenchLinearConfig

    yield from bench_linear(BenchLinearConfig(**place.how)).tables().items()


def compared(calls: Mapping[str, Callable[[], Any]], place: Place, **how: Any) -> Comparison:
    """Times calls in turns, the first is the baseline."""
    variants = [Variant(name, call) for name, call in calls.items()]
    return compare(variants, seconds=place.seconds, device=place.device, memory=False, **how)


def reached(is_reached: bool) -> str:
    """How a goal ended."""
    return "reached" if is_reached else "missed"
