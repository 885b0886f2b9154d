"""What a packed linear layer costs beside a float one, and what it loses.

One layer that is called again and again stays in the processor's cache. A model's layers take turns
and come from memory: `--layers 32` times so many layers, one after the other.

All ways take turns with the float layer, so that a busy machine slows all of them; a ratio is
the median over the turns (`chop.bench`), larger is faster. The signal-to-noise ratio is of the
outputs, against the float layer's.

python benchmarks/linear.py [--shapes 768x3072,4096x4096] [--rows 1,8,64,512,4096] [--layers 1]
    [--threads 2] [--seconds 0.5] [--only MXINT,int8] [--dtype float32]
    [--matmul-precision highest] [--profile]
"""

from __future__ import annotations

import argparse
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from cases import SPECS
from torch import Tensor, nn

from chop.base.tables import markdown_table
from chop.bench import Interval, Variant, compare
from chop.kernels.cpu.build import library
from chop.nn import quantized as q
from chop.nn.packed import pack
from chop.runs.environment import processor_name

Way = Callable[[Tensor], Tensor]


def ours(layer: nn.Linear) -> Iterator[tuple[str, Way]]:
    """Packed layers."""
    for name, spec in SPECS.items():
        quantized = q.QuantLinear.from_float(copy.deepcopy(layer), spec).eval()
        yield f"packed {name}", pack(quantized).eval()
        if name == "MXINT8":
            yield f"packed {name}, exact", pack(quantized, exact=True).eval()
            yield f"{name} decoded by PyTorch, then float32", _decoded_first(quantized)


def _decoded_first(layer: q.QuantLinear) -> Way:
    number_format = layer.spec.weight
    stored, bias = number_format.encode(layer.weight.detach()), layer.bias
    return lambda x: F.linear(x, number_format.decode(stored), bias)


def peers(layer: nn.Linear) -> Iterator[tuple[str, Way]]:
    """What is there of torch and of torchao."""
    half = copy.deepcopy(layer).bfloat16()
    yield "bfloat16", lambda x: half(x.bfloat16())
    yield "aten int4pack", _int4pack(layer)
    yield "oneDNN qlinear", _qlinear(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield (
            "torch quantize_dynamic",
            torch.ao.quantization.quantize_dynamic(
                nn.Sequential(copy.deepcopy(layer)), {nn.Linear}, dtype=torch.qint8
            ),
        )
    try:
        from torchao.quantization import (
            Int8DynamicActivationInt8WeightConfig,
            Int8WeightOnlyConfig,
            quantize_,
        )
    except ImportError:
        return
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        model = nn.Sequential(copy.deepcopy(layer))
        quantize_(model, config)
        yield f"torchao {type(config).__name__.removesuffix('Config')}", model


def _int4pack(layer: nn.Linear, group: int = 32) -> Way:
    """Groups of 4 bits with a scale each, by bfloat16."""
    weight, bias = layer.weight.float(), layer.bias.bfloat16()
    groups = weight.view(len(weight), -1, group)
    scales = groups.abs().amax(-1) / 7
    codes = (groups / scales.unsqueeze(-1)).round().int().view(weight.shape) + 8
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    scales_and_zeros = torch.stack((scales, torch.zeros_like(scales)), -1)
    scales_and_zeros = scales_and_zeros.transpose(0, 1).contiguous().bfloat16()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return lambda x: multiply(x.bfloat16(), packed, group, scales_and_zeros) + bias


def _qlinear(layer: nn.Linear) -> Way:
    """8-bit integers by output channel, inputs rounded by tensor at each call."""
    weight = layer.weight.float()
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales.unsqueeze(1)).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    zeros, bias = torch.zeros(len(weight), dtype=torch.int64), layer.bias.float()
    multiply = torch.ops.onednn.qlinear_pointwise

    def way(x: Tensor) -> Tensor:
        low, high = (end.item() for end in x.aminmax())
        step = max((max(high, 0.0) - min(low, 0.0)) / 255, 1e-12)
        zero = round(-min(low, 0.0) / step)
        rounded = torch.quantize_per_tensor(x, step, zero, torch.quint8).int_repr()
        scale = (rounded, step, zero, packed, scales, zeros, bias, 1.0, 0, torch.float32)
        return multiply(*scale, "none", [], "")

    return way


def in_turns(ways: Sequence[Way]) -> Way:
    """A way that takes each of several at every call in turn."""
    turns = itertools.cycle(ways)
    return lambda x: next(turns)(x)


def ratios(ways: Mapping[str, Way], layer: Way, x: Tensor, seconds: float) -> dict[str, Interval]:
    """How many times as fast as the layer."""
    variants = [Variant("the layer", partial(layer, x))]
    variants += [Variant(name, partial(way, x)) for name, way in ways.items()]
    found = compare(variants, "the layer", seconds=seconds, outputs=False, memory=False)
    return {name: found[name].ratio for name in ways}


def decibels(y: Tensor, expected: Tensor) -> float:
    """Signal-to-noise ratio."""
    noise = (y.double() - expected.double()).norm()
    return 20 * torch.log10(expected.double().norm() / noise).item()


def profile(way: Way, x: Tensor) -> str:
    """Which operators take the time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        for _ in range(10):
            way(x)
    return found.key_averages().table(sort_by="self_cpu_time_total", row_limit=8)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="768x3072", help="inputs x outputs")
    parser.add_argument("--rows", default="1,8,64,512,4096")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring, per way")
    parser.add_argument("--only", default="", help="ways whose name has one of these")
    parser.add_argument("--dtype", default="float32", help="of layers and activations")
    parser.add_argument("--matmul-precision", default="highest", help="of float32 products")
    parser.add_argument("--profile", action="store_true", help="where the time goes, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(options.matmul_precision)
    how = f"{options.threads} threads, {library().detail.partition(',')[0]}"
    for shape in options.shapes.split(","):
        print(f"\n{shape}, {processor_name()}, {how}\n")
        print(markdown_table(measure(*map(int, shape.split("x")), options)))


def measure(inputs: int, outputs: int, options: argparse.Namespace) -> list[dict[str, str]]:
    """A row for each way to compute layers of one shape."""
    dtype, only = getattr(torch, options.dtype), options.only.split(",")
    layers = [nn.Linear(inputs, outputs, dtype=dtype).eval() for _ in range(options.layers)]
    of_layers = [dict((*ours(layer), *peers(layer))) for layer in layers]
    ways = {
        name: in_turns([ways[name] for ways in of_layers])
        for name in of_layers[0]
        if any(part in name for part in only)
    }
    first, layer = layers[0], in_turns(layers)
    table = {name: {"way": name} for name in ways}
    for rows in map(int, options.rows.split(",")):
        x = torch.randn(rows, inputs).to(dtype)
        found = ratios(ways, layer, x, options.seconds)
        for name, way in ways.items():
            with torch.inference_mode():
                noise = decibels(of_layers[0][name](x), first(x))
                if options.profile:
                    print(f"{name}, {rows} rows\n{profile(way, x)}")
            ratio = found[name]
            cell = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            table[name][f"{rows} rows"] = cell
            table[name]["dB"] = f"{noise:.1f}"
    return list(table.values())


if __name__ == "__main__":
    main()
