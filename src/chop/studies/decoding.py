"""Study of decoding packed weights: a Python loop, PyTorch, and the device's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.timing import Variant, compare
from chop.formats import MXFP, Encoded, MXInt
from chop.formats.packing import unpack_bits
from chop.formats.reference import cast
from chop.kernels.codes import Packed
from chop.kernels.cpu import packed as cpu
from chop.kernels.cuda import dequantize as cuda
from chop.kernels.triton.register import is_installed

MicroscalingFormat = MXInt | MXFP
FORMATS: dict[str, MicroscalingFormat] = {
    "mxint8": MXInt(8),
    "mxint4": MXInt(4),
    "mxfp8": MXFP(8, 4),
    "mxfp4": MXFP(4, 2),
}
TORCH, OPERATOR, CUDA = "torch", {"cpu": "C++", "cuda": "Triton"}, "CUDA C++"
IN_PLACE, COPY, CLONE = "C++, in place", "copy, in place", "copy to new memory"
LOOP = "loop over blocks"
LOOP_SHAPE = (32, 1024)
E8M0_BIAS, E8M0_NAN = 127, 255


@dataclass(frozen=True)
class DecodeRow:
    """Result of one decoder for one format.

    Attributes:
        format: name of the format. Empty for copies.
        measured: measured times.
        seconds: time of one call by the deciding clock.
        timed_on: number of decoded elements; the time of the loop is scaled up from fewer.
        moved_bytes: codes and scales read, and results written.
        share_of_copy: bytes per second relative to copying in place.
        is_exact: True if the result equals the format's `decode` bit by bit. None for copies.
    """

    format: str
    measured: Measured
    seconds: float
    timed_on: int
    moved_bytes: int
    share_of_copy: float
    is_exact: bool | None

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        name, is_loop = self.measured.name, self.measured.name == LOOP
        ratio = "1" if name == TORCH else format_ratio(self.measured.ratio)
        exact = None if self.is_exact is None else "yes" if self.is_exact else "NO"
        return {
            "format": self.format or "-",
            "way": f"{name} (scaled up from {self.timed_on:,} numbers)" if is_loop else name,
            "time": format_seconds(self.seconds),
            "times as fast": None if is_loop else ratio,
            "moved": format_bytes(self.moved_bytes),
            "moved per second": f"{self.moved_bytes / self.seconds / 1e9:.3g} GB",
            "of a copy": f"{self.share_of_copy:.2%}" if is_loop else f"{self.share_of_copy:.0%}",
            "exact": exact,
        }


def decode_in_a_loop(encoded: Encoded, number_format: MicroscalingFormat) -> Tensor:
    """Computes `number_format.decode(encoded)` block by block, as in the specification.

    Args:
        encoded: codes of a (rows, columns) weight, in blocks along the columns.
        number_format: MXINT or MXFP.
    Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.
    """
    rows, columns = encoded.shape
    size, element = number_format.groups.sizes[-1], number_format.element
    codes = unpack_bits(encoded.codes, element.width, rows * columns).view(rows, columns).long()
    assert encoded.scales is not None
    scales = iter(encoded.scales.tolist())
    y = torch.empty(rows, columns, dtype=encoded.dtype, device=codes.device)
    for row in range(rows):
        for begin in range(0, columns, size):
            code = next(scales)
            scale = math.nan if code == E8M0_NAN else 2.0 ** (code - E8M0_BIAS)
            block = element.values(codes[row, begin : begin + size]) * scale
            y[row, begin : begin + size] = cast(block, y.dtype)
    return y


def implementations(
    encoded: Encoded, number_format: MicroscalingFormat
) -> dict[str, Callable[[], Tensor]]:
    """Returns the decoders available on the device, the reference first."""
    packed = get_packed(encoded, number_format)
    device = encoded.codes.device.type
    decoders: dict[str, Callable[[], Tensor]] = {TORCH: partial(number_format.decode, encoded)}
    if device != "cuda" or is_installed():
        decoders[OPERATOR[device]] = partial(torch.ops.chop.decode, *packed, encoded.dtype)
    y = torch.empty(encoded.shape, dtype=encoded.dtype, device=encoded.codes.device)
    if device == "cpu" and cpu.decode_into(packed, y):
        decoders[IN_PLACE] = partial(_decode_into, packed, y)
    is_taken = cuda.takes(number_format, len(encoded.shape), encoded.dtype)
    if device == "cuda" and is_taken and cuda.why_unavailable() is None:
        decoders[CUDA] = partial(cuda.dequantize, encoded, number_format)
    return decoders


def get_packed(encoded: Encoded, number_format: MicroscalingFormat) -> Packed:
    """Returns a packed weight in the form that kernels accept."""
    return Packed(encoded.codes, encoded.scales, None, list(encoded.shape), number_format.key)


def _decode_into(packed: Packed, y: Tensor) -> Tensor:
    cpu.decode_into(packed, y)
    return y


def compare_decoding(weight: Tensor, name: str, **how: Any) -> tuple[Comparison, list[DecodeRow]]:
    """Measures all decoders of a weight in one format, and copies of the float weight.

    Args:
        weight: (outputs, inputs) on the device, in the dtype of the result.
        name: one of `FORMATS`.
        how: settings of `chop.bench.compare`.
    """
    number_format = FORMATS[name]
    encoded = number_format.encode(weight)
    target, calls = torch.empty_like(weight), implementations(encoded, number_format)
    copies: dict[str, Callable[[], Tensor]] = {
        COPY: partial(target.copy_, weight),
        CLONE: weight.clone,
    }
    variants = [Variant(way, call) for way, call in {**calls, **copies}.items()]
    comparison = compare(variants, outputs=False, **how)
    with torch.inference_mode():
        exact = number_format.decode(encoded)
        is_exact = {way: torch.equal(call(), exact) for way, call in calls.items()}
    copied_per_second = 2 * weight.nbytes / comparison.decisive_seconds(COPY)
    rows = []
    for each in comparison:
        seconds = comparison.decisive_seconds(each.name)
        read = encoded.size_bytes if each.name in calls else weight.nbytes
        moved = read + weight.nbytes
        share = moved / seconds / copied_per_second
        sizes = (seconds, weight.numel(), moved, share)
        named = name if each.name in calls else ""
        rows.append(DecodeRow(named, each, *sizes, is_exact.get(each.name)))
    return comparison, [*rows, _loop_row(weight, name, copied_per_second, how)]


def _loop_row(
    weight: Tensor, name: str, copied_per_second: float, how: dict[str, Any]
) -> DecodeRow:
    """Measures the loop on a part of the weight, and scales its time up."""
    number_format, part = FORMATS[name], weight[: LOOP_SHAPE[0], : LOOP_SHAPE[1]].contiguous()
    encoded = number_format.encode(part)
    loop = partial(decode_in_a_loop, encoded, number_format)
    comparison = compare([Variant(LOOP, loop)], outputs=False, **how)
    factor = weight.numel() / part.numel()
    seconds = factor * comparison.decisive_seconds(LOOP)
    moved = round(factor * (encoded.size_bytes + part.nbytes))
    share = moved / seconds / copied_per_second
    is_exact = torch.equal(loop(), number_format.decode(encoded))
    return DecodeRow(name, comparison[LOOP], seconds, part.numel(), moved, share, is_exact)
