"""Stored weights: codes and scales of other tools converted to chop's formats without loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import CheckpointError, ChopError, ConfigError, first_line
from chop.formats import NVFP4, GroupAffine, GroupInteger, NumberFormat, ScaleInteger
from chop.formats.bfloat16 import BITS, from_bits, to_bits
from chop.formats.packing import pack_bits, unpack_bits

WORD = 32
"""Bits of a word of codes."""
WIDEST_GROUPED = 8
"""Largest width of integers with bfloat16 scales."""
MOST_ZERO = 2**10
"""Largest zero point; beyond it, k - z does not fit int16."""
ZERO_BITS = 8
"""Bits of the zero points of `group_affine`."""
DOUBLED_BITS = 5
"""Bits of twice an e2m1, from -12 to 12."""


@dataclass(frozen=True)
class Stored:
    """Weight as stored in a chop folder.

    Attributes:
        number_format: format of codes and scales.
        codes: uint8, bit-packed.
        scales: scales as stored by the format.
        tensor_scale: float32 scalar, or None.
        shape: rows and columns of the weight; None for several matrices or an unknown shape.
    """

    number_format: NumberFormat
    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor | None = None
    shape: tuple[int, int] | None = None


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Converts errors while decoding a module, which may have tensors of any shape and dtype.

    Raises:
        CheckpointError: if the tensors do not fit.
    """
    try:
        yield
    except ChopError:
        raise
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{what}: {first_line(error)}") from error


def coded_modules(
    tensors: dict[str, Tensor],
    parts: Sequence[str],
    optional: Sequence[str],
    stored: Callable[[str, Mapping[str, Tensor]], Stored],
) -> dict[str, Stored]:
    """Takes the weights of coded modules out of a folder's tensors, by module path.

    Args:
        tensors: tensors by name; those of coded modules are removed.
        parts: name suffixes that a coded module has; the first one identifies it.
        optional: suffixes that a module may lack.
        stored: (path, tensors by suffix) -> weight.

    Raises:
        CheckpointError: if a module lacks some.
    """
    weights, end = {}, f".{parts[0]}"
    for path in sorted(name.removesuffix(end) for name in tensors if name.endswith(end)):
        names = {part: f"{path}.{part}" for part in (*parts, *optional)}
        missing = [part for part in parts if names[part] not in tensors]
        if missing:
            raise CheckpointError(f"'{path}' lacks {' and '.join(missing)}.")
        own = {part: tensors.pop(name) for part, name in names.items() if name in tensors}
        weights[path] = stored(path, own)
    return weights


def parse_group_size(value: Any, where: str) -> int | None:
    """Returns the columns that share a scale; None for whole rows, written as -1.

    Raises:
        ConfigError: if the value is neither.
    """
    if type(value) is not int or (value < 1 and value != -1):
        raise ConfigError(f"{where}: expected a group_size of at least 1, or -1, got {value!r}.")
    return None if value == -1 else value


def words_packed(codes: Tensor, bits: int) -> Tensor:
    """Packs codes row by row into int32 (rows, words per row), from the low bits on.

    Args:
        codes: integers (rows, columns) from 0 to 2^bits - 1.
        bits: bits of a code, 2 to 8.
    """
    rows, columns = codes.shape
    whole = torch.nn.functional.pad(codes, (0, -columns % WORD))
    packed = pack_bits(whole, bits).view(torch.int32).view(rows, -1)
    return packed[:, : -(-columns * bits // WORD)].contiguous()


def words_unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Unpacks `words_packed` to uint8 (rows, count).

    Args:
        words: int32 (rows, words per row).
        bits: bits of a code, 2 to 8.
        count: codes of a row.
    """
    whole = torch.nn.functional.pad(words, (0, -words.size(1) % bits)).contiguous()
    codes = unpack_bits(whole.view(torch.uint8).view(-1), bits, whole.numel() * WORD // bits)
    return codes.view(len(words), -1)[:, :count]


def stored_integers(numbers: Tensor, scales: Tensor, bits: int, group: int | None) -> Stored:
    """Stores integers with scales, in bfloat16 if it represents all group scales, or float32.

    Args:
        numbers: integers (rows, columns), from -2^(bits - 1) to 2^(bits - 1) - 1.
        scales: float16, bfloat16 or float32, in the order of rows and their groups.
        bits: bits of a number, at least 2.
        group: columns that share a scale, limited to the row; None for one scale per row or tensor.

    Raises:
        ValueError: if scales are not finite floats, or if their number is wrong.
    """
    rows, columns = numbers.shape
    values = checked_scales(scales)
    number_format: NumberFormat
    if group is None:
        per_row = values.numel() == rows
        expected = rows if per_row else 1
        number_format = ScaleInteger(bits, granularity="channel" if per_row else "tensor")
    else:
        group = min(group, columns)
        expected = rows * -(-columns // group)
        number_format = ScaleInteger(bits, granularity="group", group_size=group)
        if bits <= WIDEST_GROUPED and _are_bfloat16(values):
            number_format = GroupInteger(bits, group)
    if values.numel() != expected:
        raise ValueError(f"there are {values.numel()} scales instead of {expected}")
    if isinstance(number_format, GroupInteger):
        values = pack_bits(to_bits(values), BITS)
    return Stored(number_format, pack_bits(numbers, bits), values, shape=(rows, columns))


def stored_affine(
    codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group: int | None
) -> Stored:
    """Stores s (k - z) in the narrowest format with the same values.

    If every k - z fits the bits, as in symmetric weights, the result is an integer without a zero
    point. Otherwise it is `group_affine` if all scales are positive bfloat16 numbers, or else an
    integer with one more bit or 8 bits.

    Args:
        codes: k, integers (rows, columns) from 0 to 2^bits - 1.
        scales: s, floats (rows, groups).
        zeros: z, float64 (rows, groups).
        bits: bits of a code, 2 to 8.
        group: columns that share a scale; None for whole rows.

    Raises:
        ValueError: if scales are not finite, or if no format has the zero points.
    """
    rows, columns = codes.shape
    span = min(group or columns, columns)
    is_whole = bool(((zeros == zeros.round()) & (zeros.abs() < MOST_ZERO)).all())
    # Others may be beyond all integers; what is computed of them is not used.
    whole = (zeros if is_whole else torch.zeros_like(zeros)).short()
    numbers = codes.short() - whole.repeat_interleave(span, 1)[:, :columns]
    width = max(bits, _width(numbers))
    if is_whole and width == bits:
        return stored_integers(numbers, scales, bits, group)
    values, steps = checked_scales(scales), zeros * 2.0 ** (ZERO_BITS - bits)
    is_code = (steps == steps.round()) & (zeros >= 0) & (zeros < 2**bits)
    if bool(is_code.all()) and bool((values > 0).all()) and _are_bfloat16(values):
        group_codes = to_bits(values) | steps.long().reshape(-1) << BITS
        packed = pack_bits(group_codes, BITS + ZERO_BITS)
        number_format = GroupAffine(bits, span)
        return Stored(number_format, pack_bits(codes, bits), packed, shape=(rows, columns))
    if not is_whole or width > max(WIDEST_GROUPED, bits + 1):
        raise ValueError("no format has its zero points")
    return stored_integers(numbers, scales, width, group)


@dataclass(frozen=True)
class Numbers:
    """Weight as integers times scales.

    Attributes:
        numbers: int16 (rows, columns).
        scales: float32, one-dimensional, in the order of rows and their groups.
        bits: bits of an integer in two's complement.
        group: columns that share a scale; None for whole rows.
    """

    numbers: Tensor
    scales: Tensor
    bits: int
    group: int | None


def get_numbers(one: Stored) -> Numbers | None:
    """Inverts `stored_integers` and `stored_affine` for weights with a scale per row or group.

    NVFP4 becomes integers of 5 bits: twice an e2m1, times half the scales of its block and of the
    tensor. Returns None for other formats, and for zero points that are not integers.
    """
    kind, shape = one.number_format, one.shape
    if isinstance(kind, NVFP4) and shape is not None:
        return _doubled(one, kind, shape)
    if not isinstance(kind, GroupInteger | GroupAffine | ScaleInteger) or shape is None:
        return None
    codes = unpack_bits(one.codes, kind.width, shape[0] * shape[1]).view(shape).short()
    if isinstance(kind, ScaleInteger):
        group = kind.group_size if kind.granularity == "group" else None
        return Numbers(_signed(codes, kind.width), one.scales, kind.width, group)
    groups = shape[0] * -(-shape[1] // kind.group_size)
    if isinstance(kind, GroupInteger):
        values = from_bits(unpack_bits(one.scales, BITS, groups)).float()
        return Numbers(_signed(codes, kind.width), values, kind.width, kind.group_size)
    # A stored code has the bfloat16 scale in its low 16 bits and the zero point above.
    both = unpack_bits(one.scales, BITS + ZERO_BITS, groups)
    zeros = (both >> BITS).double() * 2.0 ** (kind.width - ZERO_BITS)
    if not torch.equal(zeros, zeros.round()):
        return None
    whole = zeros.short().view(shape[0], -1).repeat_interleave(kind.group_size, 1)
    numbers = codes - whole[:, : shape[1]]
    values = from_bits(both).float()
    return Numbers(numbers, values, max(kind.width, _width(numbers)), kind.group_size)


def _doubled(one: Stored, kind: NVFP4, shape: tuple[int, int]) -> Numbers:
    """Returns an NVFP4 weight as integers, with scales rounded to float32."""
    (size,) = kind.groups.sizes
    codes = unpack_bits(one.codes, kind.element.width, shape[0] * shape[1]).long()
    # e2m1 has halves: twice its values are integers.
    numbers = (2 * kind.element.values(codes)).short().view(shape)
    groups = shape[0] * -(-shape[1] // size)
    scales = kind.scaling.restore(one.scales, groups, one.tensor_scale).view(-1)
    return Numbers(numbers, (scales / 2).float(), DOUBLED_BITS, size)


def _signed(codes: Tensor, bits: int) -> Tensor:
    """Converts two's-complement codes to numbers."""
    return codes - (codes >> (bits - 1) << bits)


def checked_scales(scales: Tensor) -> Tensor:
    """Returns scales as one-dimensional float32.

    Raises:
        ValueError: if scales are not floats, or if some are not finite.
    """
    if not scales.is_floating_point():
        raise ValueError(f"its scales are {scales.dtype}")
    values = scales.reshape(-1).float()
    if not bool(values.isfinite().all()):
        raise ValueError("some of its scales are NaN or infinite")
    return values


def _are_bfloat16(values: Tensor) -> bool:
    return torch.equal(values.bfloat16().float(), values)


def _width(numbers: Tensor) -> int:
    """Returns the bits of two's complement that hold all of some integers."""
    low, high = (int(x) for x in numbers.aminmax())
    return max((-low - 1).bit_length(), high.bit_length()) + 1
