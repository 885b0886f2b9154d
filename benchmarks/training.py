"""A QAT step of linear layers in the middle of a network, beside a float step.

python benchmarks/training.py [--rows 256] [--sizes 768 3072] [--seconds 3] [--threads 1]
    [--only clip,lsq]

Two layers, there and back, with AdamW; inputs want a gradient, as those of all layers but a
network's first do, and outputs follow a fixed target, so that gradients do not vanish. Inputs and
weights have the format. Fixed point has other fractions for weights, which are small: if all of a
layer round to zero, the gradients of the layer before are zero, and AdamW takes square roots of
zeros, for which MKL needs seven times as long. Steps take turns; a ratio is the median over the
turns, and larger is faster.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_ratio
from chop.formats import BlockFP, Integer, MinifloatIEEE, MXInt, QuantSpec, ScaleInteger
from chop.formats.quantizer import Gradient, StandIn
from chop.nn import quantized as q
from chop.runs.environment import processor_name


def both(number_format, **settings) -> QuantSpec:
    """Inputs and weights in one format."""
    return QuantSpec(data_in=number_format, weight=number_format, **settings)


def learned(width: int) -> QuantSpec:
    """A learned scale for inputs, and one for each channel of weights."""
    weight = ScaleInteger(width, granularity="channel")
    return QuantSpec(data_in=ScaleInteger(width), weight=weight, gradient="lsq")


class Copies(StandIn):
    """Copies each tensor: the traffic of memory without which no fake-quantizer works."""

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Returns a copy."""
        return x.clone()


CASES = {
    "copies of inputs and weights": both(Copies()),
    "integer 8.4, weights 8.11": QuantSpec(data_in=Integer(8, 4), weight=Integer(8, 11)),
    "integer 8.auto": both(Integer(8, "auto")),
    "mxint8": both(MXInt(8)),
    "minifloat e4m3": both(MinifloatIEEE(8, 4)),
    "block_fp 8": both(BlockFP(8)),
    "integer 8.4, weights 8.11, clip": QuantSpec(
        data_in=Integer(8, 4), weight=Integer(8, 11), gradient="clip"
    ),
    "integer 4.2, weights 4.8, clip": QuantSpec(
        data_in=Integer(4, 2), weight=Integer(4, 8), gradient="clip"
    ),
    "scale_integer 8 by tensor and channel, lsq": learned(8),
    "scale_integer 2 by tensor and channel, lsq": learned(2),
}


def steps(spec: QuantSpec, rows: int, sizes: tuple[int, int]) -> dict[str, Callable[[], None]]:
    """A step of the float layers, and of the quantized ones."""
    torch.manual_seed(0)
    layers = [nn.Linear(*sizes), nn.Linear(*reversed(sizes))]
    quantized = [q.QuantLinear.from_float(copy.deepcopy(layer), spec) for layer in layers]
    x = torch.randn(rows, sizes[0], requires_grad=True)
    target = torch.randn(rows, sizes[0])

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        x.grad = None
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()

    calls = {}
    for name, parts in {"float": layers, "quantized": quantized}.items():
        model = nn.Sequential(*parts).train()
        model(x)  # scales that are learned begin with the first batch
        calls[name] = partial(step, model, torch.optim.AdamW(model.parameters(), lr=1e-5))
    return calls


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs=2, default=(768, 3072))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="formats whose name has one of these")
    options = parser.parse_args()
    rows, parts = [], options.only.split(",")
    for name, spec in CASES.items():
        if not any(part in name for part in parts):
            continue
        variants = [Variant(n, f) for n, f in steps(spec, options.rows, options.sizes).items()]
        how = {"seconds": options.seconds, "threads": options.threads, "memory": False}
        found = compare(variants, inference=False, outputs=False, **how)
        rows.append({"format": name, "times as fast": format_ratio(found["quantized"].ratio)})
    print_table(f"A QAT step beside a float step, {processor_name()}", rows)


if __name__ == "__main__":
    main()
