"""What fake-quantizing costs, as a ratio to `torch.clone` of the same tensor.

Per format: the kernel in a new tensor (as quantized operators call it), the kernel into a tensor
that is there, and on demand the readable reference. A second table has what others offer
(`format_peers.py`), beside our kernel of the same format. All take turns with `clone`, so that a
busy machine slows all of them; a ratio is the median over the turns (`chop.bench`). A clone of a
large tensor is mostly the cost of fresh memory, which is why writing to memory that is there can
cost a fraction of it.

python benchmarks/formats.py [--size 4096] [--seconds 0.5] [--threads 2] [--only mxint]
    [--reference] [--no-peers]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial

import torch
from cases import FORMATS
from format_peers import Way, peers
from torch import Tensor

from chop.base.tables import markdown_table
from chop.bench import Variant, compare
from chop.formats import NumberFormat
from chop.kernels import KERNELS, fake_quantize
from chop.kernels.cpu.build import library

WAYS = ("native", "native, out=", "reference")


def ratios(ways: Mapping[str, Way], x: Tensor, seconds: float) -> dict[str, float]:
    """How many times what a clone takes each way takes, the release of its result included."""
    variants = [Variant("clone", partial(torch.clone, x))]
    variants += [Variant(name, partial(way, x)) for name, way in ways.items()]
    found = compare(variants, "clone", seconds=seconds, outputs=False, memory=False)
    return {name: 1 / found[name].ratio.median for name in ways}


def get_row(
    number_format: NumberFormat, x: Tensor, seconds: float, reference: bool
) -> dict[str, str]:
    """The ways of a format."""
    out = torch.empty_like(x)
    is_native = KERNELS["cpu"].run(x, number_format, out)
    ways: tuple[Way | None, ...] = (
        number_format if is_native else None,
        (lambda x: fake_quantize(x, number_format, out)) if is_native else None,
        number_format.round if reference else None,
    )
    named = zip(WAYS, ways, strict=True)
    found = ratios({name: way for name, way in named if way is not None}, x, seconds)
    shown = [name for name in WAYS if reference or name != "reference"]
    measured = {name: f"{found[name]:.2f}" if name in found else "-" for name in shown}
    return {"format": number_format.label, **measured}


def peer_row(
    name: str, number_format: NumberFormat, way: Way, x: Tensor, seconds: float
) -> dict[str, str]:
    """A peer and ours in turn, and the share of values that are equal."""
    found = ratios({"ours": number_format, "theirs": way}, x, seconds)
    return {
        "peer": name,
        "its ratio": f"{found['theirs']:.2f}",
        "format": number_format.label,
        "native": f"{found['ours']:.2f}",
        "times slower": f"{found['theirs'] / found['ours']:.1f}",
        "equal values": f"{(way(x) == number_format(x)).double().mean():.2%}",
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring, per way")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="formats whose text contains this")
    parser.add_argument("--reference", action="store_true", help="the readable one too")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.size, options.size)
    print(f"{options.size} x {options.size} float32, {options.threads} threads; C++ kernels:")
    print(f"{library().detail}\n")
    chosen = [number_format for number_format in FORMATS if options.only in number_format.label]
    rows = [get_row(fmt, x, options.seconds, options.reference) for fmt in chosen]
    print(markdown_table(rows))
    if options.peers:
        compared = [peer for peer in peers(x) if options.only in peer[1].label]
        print("\n" + markdown_table([peer_row(*peer, x, options.seconds) for peer in compared]))


if __name__ == "__main__":
    main()
