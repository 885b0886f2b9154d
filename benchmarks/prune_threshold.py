"""Which half of BERT-base's weights is smallest: `lowest` against the usual ways of selecting.

Every way gets the same magnitudes in 72 tensors (85 million) and has to give one boolean mask per
tensor with exactly the asked count. They take turns, so that a busy machine slows all of them.

python benchmarks/prune_threshold.py [--layers 12] [--repeat 5] [--sparsity 0.5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chop.base.tables import markdown_table
from chop.nn.sparsity.selection import lowest, lowest_by_sorting

Way = Callable[[Sequence[Tensor], int], list[Tensor]]
SHAPES = [(768, 768)] * 4 + [(3072, 768), (768, 3072)]


def by_kthvalue(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """`torch.kthvalue` of the joined tensors; equal values are all taken."""
    threshold = torch.cat([x.view(-1) for x in scores]).kthvalue(count).values
    return [x <= threshold for x in scores]


WAYS: dict[str, Way] = {
    "lowest": lowest,
    "torch.kthvalue": by_kthvalue,
    "torch.sort": lowest_by_sorting,
}


def get_seconds(way: Way, scores: Sequence[Tensor], count: int) -> float:
    """Wall time of one call; checks what it gives."""
    start = time.perf_counter()
    masks = way(scores, count)
    seconds = time.perf_counter() - start
    found = sum(int(mask.sum()) for mask in masks)
    if not count <= found <= count * 1.001:
        raise RuntimeError(f"{way.__name__} took {found} instead of {count}")
    return seconds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sparsity", type=float, default=0.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shapes = SHAPES * options.layers
    scores = [torch.randn(shape, generator=generator).mul_(0.02).abs_() for shape in shapes]
    total = sum(x.numel() for x in scores)
    count = round(options.sparsity * total)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.repeat):
        for name, way in WAYS.items():
            times[name].append(get_seconds(way, scores, count))
    rows = [
        {
            "way": name,
            "median s": statistics.median(seconds),
            "times lowest": statistics.median(
                other / ours for other, ours in zip(seconds, times["lowest"], strict=True)
            ),
        }
        for name, seconds in times.items()
    ]
    print(f"{total / 1e6:.1f} million weights, sparsity {options.sparsity:g}, one thread\n")
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
