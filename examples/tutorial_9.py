"""Tutorial 9: kernel fusion, on softmax.

python examples/tutorial_9.py                  (on a CPU too, two minutes)
python examples/tutorial_9.py --device cuda    (with the Triton kernel among those timed)
python examples/tutorial_9.py --quick          (a small matrix, to see that it works, half a minute)

Softmax written out in five operations sends every intermediate to memory and reads it back. The
numbers that move are counted first, as the operations run. A fused kernel keeps a row on the chip
from its reading to its writing: `chop.kernels.triton.softmax` does, in a block of a power of two
columns, the rest of which is masked. Without a GPU the kernel runs in Triton's interpreter, which
shows its results and says nothing of its speed; the others are timed on the CPU.
"""

import argparse
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chop.actions.bench.report import write_results
from chop.base.tables import print_table
from chop.studies.softmax import BenchSoftmaxConfig, bench_softmax, naive_softmax

VIEWS = ("unsqueeze", "alias", "slice", "view")


class CountNumbers(TorchDispatchMode):
    """Counts the numbers that operations read and write while it is active."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            results = result if isinstance(result, tuple) else (result,)
            self.rows.append(
                {"operation": name, "read": numbers_in(args), "written": numbers_in(results)}
            )
        return result


def numbers_in(values):
    """How many numbers the floating-point tensors among some values hold."""
    tensors = (x for x in values if isinstance(x, torch.Tensor) and x.is_floating_point())
    return sum(x.numel() for x in tensors)


def count(rows, columns):
    """What the naive softmax moves, against 5MN + 2M and 3MN + 2M."""
    x = torch.randn(rows, columns)
    with torch.no_grad(), CountNumbers() as counter:
        naive_softmax(x)
    total = {key: sum(row[key] for row in counter.rows) for key in ("read", "written")}
    print_table(
        f"Softmax of {rows} x {columns}, written out: numbers that move",
        [*counter.rows, {"operation": "all", **total}],
    )
    numbers = rows * columns
    same = total == {"read": 5 * numbers + 2 * rows, "written": 3 * numbers + 2 * rows}
    print(f"reads 5MN + 2M, writes 3MN + 2M: {same}")
    print(f"fused: reads MN, writes MN, {sum(total.values()) / (2 * numbers):.2f} times less")


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-9"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    count(4096, 1024)
    found = bench_softmax(BenchSoftmaxConfig(device=args.device, quick=args.quick))
    write_results(found, args.out)
    if not found.interpreted and args.device == "cpu":
        print("Triton is not installed: pip install 'mase-chop[triton]' runs the kernel, too.")


if __name__ == "__main__":
    main()
