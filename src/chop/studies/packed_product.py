"""Study of products with packed weights: fused decoding, decoding first, and float weights.

"Fused" is the implementation in packed layers. On GPUs, it decodes first from two rows on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.timing import Variant, compare
from chop.formats import Float
from chop.kernels.codes import Packed
from chop.studies.decoding import FORMATS, get_packed

FLOAT = Float()
FLOAT_WAY, FUSED, DECODED = "float", "fused", "decoded first"


@dataclass(frozen=True)
class ProductRow:
    """Result of one implementation for one weight.

    Attributes:
        format: format of the weight. Empty for float.
        way: "float", "fused" or "decoded first".
        rows: number of activation rows.
        measured: measured times.
        seconds: time of one call by the deciding clock.
        weight_bytes: bytes moved for the weight: reading it, and if it is decoded first also
            writing and reading it as floats.
        share_of_copy: weight bytes per second relative to a copy. For one row, other data are
            negligible, and it is the share of the roofline.
        noise_db: signal-to-noise ratio of the result relative to the float weight.
    """

    format: str
    way: str
    rows: int
    measured: Measured
    seconds: float
    weight_bytes: int
    share_of_copy: float
    noise_db: float | None

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        is_baseline = self.way == FLOAT_WAY
        return {
            "rows": self.rows,
            "format": self.format or "-",
            "way": self.way,
            "time": format_seconds(self.seconds),
            "times as fast": "1" if is_baseline else format_ratio(self.measured.ratio),
            "moved for the weight": format_bytes(self.weight_bytes),
            "of a copy": f"{self.share_of_copy:.0%}",
            "dB": None if self.noise_db is None else f"{self.noise_db:.0f}",
        }


def compare_products(
    weight: Tensor, names: Sequence[str], rows: int, copied_per_second: float, **how: Any
) -> tuple[Comparison, list[ProductRow]]:
    """Measures products of activations with a weight in several formats, interleaved.

    Args:
        weight: (outputs, inputs) on the device. Activations have its dtype.
        names: names from `FORMATS`.
        rows: number of activation rows.
        copied_per_second: bytes per second that the device reads and writes in a copy.
        how: settings of `chop.bench.compare`.
    """
    x = torch.randn(rows, weight.size(1), generator=torch.Generator().manual_seed(rows))
    x = x.to(weight)
    stored = {name: FORMATS[name].encode(weight) for name in names}
    calls: dict[tuple[str, str], Callable[[], Tensor]] = {
        ("", FLOAT_WAY): partial(F.linear, x, weight)
    }
    for name, encoded in stored.items():
        packed = get_packed(encoded, FORMATS[name])
        calls[name, FUSED] = partial(
            torch.ops.chop.packed_linear, x, FLOAT.key, *packed, None, False
        )
        calls[name, DECODED] = partial(_decoded_first, x, packed)
    variants = [Variant(" ".join(key).strip(), call) for key, call in calls.items()]
    # On a GPU, one row takes less time than launching its kernels from Python.
    comparison = compare(variants, outputs=False, cuda_graph=True, **how)
    with torch.inference_mode():
        exact = calls["", FLOAT_WAY]().double()
        noise = {
            key: (call().double() - exact).norm() / exact.norm() for key, call in calls.items()
        }
    result = []
    for (name, way), each in zip(calls, comparison, strict=True):
        seconds = comparison.decisive_seconds(each.name)
        moved = stored[name].size_bytes if name else weight.nbytes
        moved += 2 * weight.nbytes if way == DECODED else 0
        decibels = -20 * noise[name, way].log10().item() if name else None
        share = moved / seconds / copied_per_second
        result.append(ProductRow(name, way, rows, each, seconds, moved, share, decibels))
    return comparison, result


def _decoded_first(x: Tensor, packed: Packed) -> Tensor:
    return F.linear(x, torch.ops.chop.decode(*packed, x.dtype))
