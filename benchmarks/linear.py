"""What a packed linear layer costs beside a float one, and what it loses.

One layer that is called again and again stays in the processor's cache. A model's layers take turns
and come from memory: `--layers 32` times so many layers, one after the other.

All ways take turns with the float layer, so that a busy machine slows all of them; a ratio is
the median over the turns (`chop.bench`), larger is faster. The signal-to-noise ratio is of the
outputs, against the float layer's.

python benchmarks/linear.py [--inputs 768] [--outputs 3072] [--rows 1,8,64,512,4096] [--layers 1]
    [--threads 2] [--seconds 0.5] [--only MXINT] [--dtype float32] [--matmul-precision highest]
    [--profile]
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

from chop.bench import Variant, compare
from chop.kernels.cpu.build import library
from chop.nn import quantized as q
from chop.nn.packed import pack
from chop.tables import markdown_table

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


def in_turns(ways: Sequence[Way]) -> Way:
    """A way that takes each of several at every call in turn."""
    turns = itertools.cycle(ways)
    return lambda x: next(turns)(x)


def ratios(ways: Mapping[str, Way], layer: Way, x: Tensor, seconds: float) -> dict[str, float]:
    """How many times as fast as the layer."""
    variants = [Variant("the layer", partial(layer, x))]
    variants += [Variant(name, partial(way, x)) for name, way in ways.items()]
    found = compare(variants, "the layer", seconds=seconds, outputs=False, memory=False)
    return {name: found[name].ratio.median for name in ways}


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


@torch.inference_mode()
def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=768)
    parser.add_argument("--outputs", type=int, default=3072)
    parser.add_argument("--rows", default="1,8,64,512,4096")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring, per way")
    parser.add_argument("--only", default="", help="ways whose name contains this")
    parser.add_argument("--dtype", default="float32", help="of layers and activations")
    parser.add_argument("--matmul-precision", default="highest", help="of float32 products")
    parser.add_argument("--profile", action="store_true", help="where the time goes, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(options.matmul_precision)
    dtype, sizes = getattr(torch, options.dtype), (options.inputs, options.outputs)
    layers = [nn.Linear(*sizes, dtype=dtype).eval() for _ in range(options.layers)]
    print(f"{options.inputs} x {options.outputs}, {options.threads} threads, {library().detail}\n")
    of_layers = [dict((*ours(layer), *peers(layer))) for layer in layers]
    ways = {
        name: in_turns([ways[name] for ways in of_layers])
        for name in of_layers[0]
        if options.only in name
    }
    first, layer = layers[0], in_turns(layers)
    table = {name: {"way": name} for name in ways}
    for rows in map(int, options.rows.split(",")):
        x = torch.randn(rows, options.inputs).to(dtype)
        expected = first(x)
        found = ratios(ways, layer, x, options.seconds)
        for name, way in ways.items():
            table[name][f"{rows} rows"] = f"{found[name]:.2f}"
            table[name]["dB"] = f"{decibels(of_layers[0][name](x), expected):.1f}"
            if options.profile:
                print(f"{name}, {rows} rows\n{profile(way, x)}")
    print(markdown_table(list(table.values())))


if __name__ == "__main__":
    main()
