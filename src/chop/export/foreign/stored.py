"""Stored weights: codes and scales of other tools in the formats of chop, value by value."""

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
"""Bits of integers with bfloat16 scales."""
MOST_ZERO = 2**10
"""Beyond it no k - z is narrow, and it would not fit into int16 with a code."""
ZERO_BITS = 8
"""Of the zero points of `group_affine`."""
DOUBLED_BITS = 5
"""Bits of twice an e2m1, from -12 to 12."""


@dataclass(frozen=True)
class Stored:
    """A weight as a folder of chop stores it.

    Attributes:
        number_format: that codes and scales are of.
        codes: uint8, bit-packed.
        scales: as the format stores them.
        tensor_scale: float32 scalar, or None.
        shape: rows and columns of the weight; None: of several matrices, or not known.
    """

    number_format: NumberFormat
    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor | None = None
    shape: tuple[int, int] | None = None


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Around the decoding of a module, whose tensors may have any shape and type.

    Raises:
        CheckpointError: they do not fit.
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
    """Weights by path of a module, taken out of the tensors of a folder.

    Args:
        tensors: by name; those of coded modules are removed.
        parts: ends of the names that a coded module has, the first of which tells it.
        optional: of those that it may have.
        stored: path and tensors by end -> the weight.

    Raises:
        CheckpointError: a module lacks some.
    """
    found, end = {}, f".{parts[0]}"
    for path in sorted(name.removesuffix(end) for name in tensors if name.endswith(end)):
        names = {part: f"{path}.{part}" for part in (*parts, *optional)}
        missing = [part for part in parts if names[part] not in tensors]
        if missing:
            raise CheckpointError(f"'{path}' lacks {' and '.join(missing)}.")
        own = {part: tensors.pop(name) for part, name in names.items() if name in tensors}
        found[path] = stored(path, own)
    return found


def parse_group_size(value: Any, where: str) -> int | None:
    """Columns that share a scale; None: all of a row, which is -1 in settings.

    Raises:
        ConfigError: it is neither.
    """
    if type(value) is not int or (value < 1 and value != -1):
        raise ConfigError(f"{where}: expected a group_size from 1 on, or -1, got {value!r}.")
    return None if value == -1 else value


def words_packed(codes: Tensor, bits: int) -> Tensor:
    """int32 (rows, words of a row), codes one after the other from the low bits on, rows apart.

    Args:
        codes: integers (rows, columns) from 0 to 2^bits - 1.
        bits: of a code, 2 to 8.
    """
    rows, columns = codes.shape
    whole = torch.nn.functional.pad(codes, (0, -columns % WORD))
    packed = pack_bits(whole, bits).view(torch.int32).view(rows, -1)
    return packed[:, : -(-columns * bits // WORD)].contiguous()


def words_unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Inverse of `words_packed`: uint8 (rows, count).

    Args:
        words: int32 (rows, words of a row).
        bits: of a code, 2 to 8.
        count: codes of a row.
    """
    whole = torch.nn.functional.pad(words, (0, -words.size(1) % bits)).contiguous()
    codes = unpack_bits(whole.view(torch.uint8).view(-1), bits, whole.numel() * WORD // bits)
    return codes.view(len(words), -1)[:, :count]


def stored_integers(numbers: Tensor, scales: Tensor, bits: int, group: int | None) -> Stored:
    """Integers times scales, in bfloat16 where all scales of groups are such, or in float32.

    Args:
        numbers: integers (rows, columns), from -2^(bits - 1) to 2^(bits - 1) - 1.
        scales: float16, bfloat16 or float32, in the order of the rows and of their groups.
        bits: of a number, from 2 on.
        group: columns that share a scale, all of a row where it has fewer; None: one scale for each
            row, or for all.

    Raises:
        ValueError: scales are not finite, not float, or not as many.
    """
    rows, columns = numbers.shape
    values = checked_scales(scales)
    found: NumberFormat
    if group is None:
        per_row = values.numel() == rows
        expected = rows if per_row else 1
        found = ScaleInteger(bits, granularity="channel" if per_row else "tensor")
    else:
        group = min(group, columns)
        expected = rows * -(-columns // group)
        found = ScaleInteger(bits, granularity="group", group_size=group)
        if bits <= WIDEST_GROUPED and _are_bfloat16(values):
            found = GroupInteger(bits, group)
    if values.numel() != expected:
        raise ValueError(f"there are {values.numel()} scales, and not {expected}")
    if isinstance(found, GroupInteger):
        values = pack_bits(to_bits(values), BITS)
    return Stored(found, pack_bits(numbers, bits), values, shape=(rows, columns))


def stored_affine(
    codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group: int | None
) -> Stored:
    """s (k - z) in the narrowest format of the same values.

    Where every k - z fits into the bits, as with symmetric weights, it is an integer without a zero
    point. Else it is `group_affine` where all scales are positive bfloat16 numbers, and an integer
    of more bits elsewhere: of one more, or of 8, and no others.

    Args:
        codes: k, integers (rows, columns) from 0 to 2^bits - 1.
        scales: s, floats (rows, groups).
        zeros: z, float64 (rows, groups).
        bits: of a code, 2 to 8.
        group: columns that share a scale; None: all of a row.

    Raises:
        ValueError: scales are not finite, or zero points those of no format.
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
        of_groups = to_bits(values) | steps.long().reshape(-1) << BITS
        packed = pack_bits(of_groups, BITS + ZERO_BITS)
        number_format = GroupAffine(bits, span)
        return Stored(number_format, pack_bits(codes, bits), packed, shape=(rows, columns))
    if not is_whole or width > max(WIDEST_GROUPED, bits + 1):
        raise ValueError("its zero points are those of no format here")
    return stored_integers(numbers, scales, width, group)


@dataclass(frozen=True)
class Numbers:
    """A weight as integers times scales.

    Attributes:
        numbers: int16 (rows, columns).
        scales: float32, one-dimensional, in the order of the rows and of their groups.
        bits: bits of an integer, in two's complement.
        group: columns that share a scale; None: all of a row.
    """

    numbers: Tensor
    scales: Tensor
    bits: int
    group: int | None


def get_numbers(one: Stored) -> Numbers | None:
    """Inverse of `stored_integers` and `stored_affine` where there is a scale for a row or group.

    Numbers of NVFP4 are integers of 5 bits: twice an e2m1, times half the scales of its block and
    of the tensor. None of weights of other formats, and of zero points that are no integers.
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
    both = unpack_bits(one.scales, BITS + ZERO_BITS, groups)
    zeros = (both >> BITS).double() * 2.0 ** (kind.width - ZERO_BITS)
    if not torch.equal(zeros, zeros.round()):
        return None
    whole = zeros.short().view(shape[0], -1).repeat_interleave(kind.group_size, 1)
    numbers = codes - whole[:, : shape[1]]
    values = from_bits(both).float()
    return Numbers(numbers, values, max(kind.width, _width(numbers)), kind.group_size)


def _doubled(one: Stored, kind: NVFP4, shape: tuple[int, int]) -> Numbers:
    """The weight of NVFP4 as integers, whose scales are rounded to float32."""
    (size,) = kind.groups.sizes
    codes = unpack_bits(one.codes, kind.element.width, shape[0] * shape[1]).long()
    numbers = (2 * kind.element.values(codes)).short().view(shape)
    groups = shape[0] * -(-shape[1] // size)
    scales = kind.scaling.restore(one.scales, groups, one.tensor_scale).view(-1)
    return Numbers(numbers, (scales / 2).float(), DOUBLED_BITS, size)


def _signed(codes: Tensor, bits: int) -> Tensor:
    """The numbers that codes in two's complement stand for."""
    return codes - (codes >> (bits - 1) << bits)


def checked_scales(scales: Tensor) -> Tensor:
    """Scales as float32, one-dimensional.

    Raises:
        ValueError: they are no float numbers, or some are not finite.
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
    """Bits of two's complement that hold all of some integers."""
    low, high = (int(x) for x in numbers.aminmax())
    return max((-low - 1).bit_length(), high.bit_length()) + 1
