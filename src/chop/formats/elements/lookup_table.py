"""Lookup tables: elements that are given number by number, also called codebooks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from chop.errors import ConfigError, describe
from chop.formats.elements.element import Element, Rounding

LARGEST = torch.finfo(torch.float32).max
FEW = 16
"""Numbers up to which a CPU compares values with all of them."""


@dataclass(frozen=True)
class LookupTable(Element):
    """Any 2^width numbers. Values become the nearest one; of two, the lower one.

    Attributes:
        table: number of each code, float32, including zero. Numbers can be repeated; they get the
            first of their codes. -0.0 becomes 0.0.
        width: bits per element.

    Example:
        >>> LookupTable((0.0, 0.25, 1.0, -1.0), 2).round(torch.tensor([0.5, -7.0]).double())
        tensor([ 0.2500, -1.0000], dtype=torch.float64)
    """

    table: tuple[float, ...]
    width: int = 4
    rounding: Rounding = "nearest_down"
    has_zero = True
    is_mirrored = False

    def __post_init__(self) -> None:
        if not isinstance(self.table, tuple) or not isinstance(self.width, int) or self.width < 1:
            raise ConfigError(
                "LookupTable: expected a tuple of numbers and a width of 1 bit or more, got "
                f"{describe(self.table)} and {self.width!r}."
            )
        if self.rounding != "nearest_down":
            raise ConfigError(
                f"LookupTable: expected the rounding 'nearest_down', got {describe(self.rounding)}."
            )
        count = len(self.table)
        if count != 2**self.width:
            fits = count > 1 and count & (count - 1) == 0
            remedy = f"Pass {count.bit_length() - 1} as its width" if fits else "Repeat a number"
            raise ConfigError(
                f"LookupTable: expected {2**self.width} numbers for a width of {self.width} bits, "
                f"got {count}. {remedy}{'' if fits else ' to fill a table'}."
            )
        if 0.0 not in self.table or not all(abs(x) <= LARGEST for x in self.table):
            raise ConfigError("LookupTable: expected finite numbers of float32, one of which is 0.")
        # Negative zero equals zero, and would otherwise depend on which of both comes first.
        object.__setattr__(self, "table", tuple(x + 0.0 for x in self.table))

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(map(abs, self.table))

    @property
    def lowest(self) -> float:
        """Lowest number."""
        return min(self.table)

    @property
    def highest(self) -> float:
        """Highest number."""
        return max(self.table)

    @property
    def nan_code(self) -> int:  # type: ignore[override]
        """Code of zero."""
        return self.table.index(0.0)

    def round(self, x: Tensor) -> Tensor:
        """Rounds to the nearest number."""
        numbers, _, middles = _sorted(self.table, x.device)
        y = numbers.index_select(0, _places(x, middles)).view(x.shape)
        return y.masked_fill_(x.isnan(), torch.nan)

    def saturates(self, x: Tensor) -> Tensor:
        """Returns True below the lowest and above the highest number."""
        return (x < self.lowest) | (x > self.highest)

    def codes(self, y: Tensor) -> Tensor:
        """Returns the codes of numbers of the table."""
        _, codes, middles = _sorted(self.table, y.device)
        return codes.index_select(0, _places(y, middles)).view(y.shape)

    def values(self, codes: Tensor) -> Tensor:
        """Returns the numbers of codes."""
        return torch.tensor(self.table, dtype=torch.float64, device=codes.device)[codes.long()]


def _places(x: Tensor, middles: Tensor) -> Tensor:
    """Returns the number of middles below each value, int32, one-dimensional."""
    if len(middles) > FEW or not x.is_cpu:
        return torch.bucketize(x, middles, out_int32=True).view(-1)
    flat = x.reshape(-1)
    places = torch.zeros(flat.shape, dtype=torch.int32)
    for middle in middles.tolist():  # faster than a search for each value
        places += flat > middle
    return places


@cache
def _sorted(table: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the different numbers in order, float64, their first codes, and their middles."""
    first = {number: code for code, number in reversed([*enumerate(table)])}
    numbers = torch.tensor(sorted(first), dtype=torch.float64, device=device)
    codes = torch.tensor([first[number] for number in sorted(first)], device=device)
    return numbers, codes, (numbers[1:] + numbers[:-1]) / 2
