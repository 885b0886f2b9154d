"""Running ranges of activations in training, stored as buffers.

The grid of a format with a derived field follows the largest magnitude of the last `WINDOW`
training tensors. It widens at once, so that no training tensor saturates more than its fit allows.
It narrows when the maximum of the window is at most half of the fitted one. An outlier is forgotten
after `WINDOW` tensors. Source: delayed scaling of NVIDIA's Transformer Engine (`DelayedScaling`
with `amax_compute_algo="max"`), a maximum over a history of maxima.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from chop.errors import DerivativeError
from chop.formats import OPERANDS, Quantizer
from chop.nn.quantized.numbers import WHOLE, get_numbers, is_in_fake_mode
from chop.private.torch_api import (
    is_batched,
    is_fake,
    is_in_backward,
    is_transformed,
)

WINDOW = 16
"""Number of training tensors in the history of maxima."""
RANGE_NAMES = {operand: f"{operand}_range" for operand in OPERANDS}
"""The range buffers by operand."""
HEAD = 3
LARGEST = torch.finfo(torch.float32).max
FLOAT32, NUMBERS = struct.Struct("f"), struct.Struct(f"{HEAD + WINDOW}f")


@dataclass(frozen=True)
class RunningMaximum:
    """Range of an operand with an uncalibrated format.

    Attributes:
        waiting: the format with a derived field.
        largest: magnitude that the format was fitted to.
        fitted: the format fitted to it.
    """

    waiting: Quantizer
    largest: float
    fitted: Quantizer


def empty_range(device: torch.device | None = None) -> Tensor:
    """Returns the buffer of an operand before the first training tensor.

    float32 (3 + `WINDOW`,): the magnitude that the format is fitted to, the derived number, a
    fingerprint of the format, and the largest magnitudes of the last training tensors, newest
    first. Infinity marks an empty range, since averages of buffers keep it or turn it into NaN;
    missing magnitudes are 0.

    Args:
        device: device of the buffer. Default: the CPU.
    """
    buffer = torch.zeros(HEAD + WINDOW, dtype=torch.float32, device=device)
    buffer[:HEAD] = math.inf
    return buffer


def read_range(buffer: Tensor, waiting: Quantizer) -> RunningMaximum | None:
    """Returns the range in a buffer; None if it is empty, has no values, or has another format.

    Args:
        buffer: see `empty_range`.
        waiting: the format with a derived field.

    Raises:
        DerivativeError: if `torch.vmap` runs several models with different ranges at once.
    """
    if type(buffer) not in WHOLE and is_fake(buffer):
        return None
    if buffer.is_meta:
        return None
    if is_batched(buffer):
        raise DerivativeError(
            f"{waiting.label} has a different range in each model of torch.vmap; call them one "
            "after the other, or run calibrate_transform_pass and omit the buffers."
        )
    return _get_range(get_numbers(buffer), waiting)


def _get_range(numbers: Sequence[float], waiting: Quantizer) -> RunningMaximum | None:
    largest, derived, fingerprint = numbers[:HEAD]
    # NaN and infinity: nothing was seen, or an average with a copy that had seen nothing.
    if not 0 < largest < math.inf or not math.isfinite(derived):
        return None
    return _restored(waiting, largest, derived, fingerprint)


@lru_cache(maxsize=4096)
def _restored(
    waiting: Quantizer, largest: float, derived: float, fingerprint: float
) -> RunningMaximum | None:
    if fingerprint != _fingerprint(waiting):
        return None
    return RunningMaximum(waiting, largest, waiting.with_derived(derived, largest))


@lru_cache(maxsize=4096)
def _fingerprint(waiting: Quantizer) -> float:
    """Returns a number that identifies a format and is exact in float32."""
    key = waiting.cache_key
    text = key if isinstance(key, str) else waiting.label
    return float(zlib.crc32(text.encode()) % 2**24)


@torch.no_grad()
def write_range(buffer: Tensor, maximum: RunningMaximum, recent: Sequence[float]) -> None:
    """Writes a range into its buffer, in place.

    Args:
        buffer: see `empty_range`.
        maximum: the range.
        recent: largest magnitudes of the last training tensors, newest first.
    """
    number = maximum.waiting.derived_number(maximum.fitted)
    head = (maximum.largest, number, _fingerprint(maximum.waiting))
    numbers = NUMBERS.pack(*head, *recent, *(0.0,) * (WINDOW - len(recent)))
    buffer.copy_(torch.frombuffer(bytearray(numbers), dtype=torch.float32))  # faster than a list


def observe(buffer: Tensor, waiting: Quantizer, x: Tensor) -> bool:
    """Updates the range of an operand with a training tensor; see the module for the rule.

    The maximum takes one pass over `x`. A fit takes about fifty times as long, and is repeated only
    when the maximum of the window leaves the half-open interval (largest / 2, largest]. Non-finite
    values are ignored.

    Args:
        buffer: see `empty_range`.
        waiting: the format with a derived field.
        x: any shape, floating. Tensors without values (compilers, fake tensors, transforms),
            all-zero tensors, and recomputations of gradient checkpointing change nothing.
    Returns: true if the fit has changed.
    """
    if _is_opaque(x) or is_in_backward():
        return False
    largest = _largest(x.detach())
    if not largest:
        return False
    numbers = get_numbers(buffer)
    maximum = known = _get_range(numbers, waiting)
    before = [] if maximum is None else [y for y in numbers[HEAD:-1] if y > 0]
    recent = [largest, *before]
    peak = max(recent)
    if maximum is None or largest > maximum.largest:
        maximum = RunningMaximum(waiting, largest, waiting.fitted(x.detach()))
    elif peak < maximum.largest / 2:
        scaled = x.detach().double() * (peak / largest)
        maximum = RunningMaximum(waiting, peak, waiting.fitted(scaled))
    write_range(buffer, maximum, recent)
    return maximum is not known


def merged_range(ranges: Sequence[Sequence[float]]) -> list[float]:
    """Merges the ranges of several processes into one buffer's numbers.

    Each entry of the window is the maximum over the processes. The fit is the narrowest one that
    covers the window.
    """
    known = [y for y in ranges if 0 < y[0] < math.inf]
    known = [y for y in known if y[2] == known[0][2]]
    if not known:
        return list(ranges[0])
    recent = [max(column) for column in zip(*(y[HEAD:] for y in known), strict=True)]
    covering = [y for y in known if y[0] >= max(recent)] or [max(known, key=lambda y: y[0])]
    return [*min(covering, key=lambda y: y[0])[:HEAD], *recent]


def _is_opaque(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or is_transformed() or x.is_meta or not x.numel():
        return True
    return is_in_fake_mode(x)


def _largest(x: Tensor) -> float:
    """Returns the largest finite magnitude as float32, the dtype of buffers."""
    low, high = (end.item() for end in x.aminmax())
    if not math.isfinite(high - low):
        finite = x[x.isfinite()]
        largest = finite.abs().max().item() if finite.numel() else 0.0
    else:
        largest = max(-low, high)
    rounded: float = FLOAT32.unpack(FLOAT32.pack(min(largest, LARGEST)))[0]
    return rounded
