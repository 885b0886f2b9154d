"""Ranges of numeric settings."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from chop.errors import ConfigError

PERCENT = 5
"""Smallest number for which a message about a share explains per cent."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a numeric setting: `Annotated[int, Range(1, 100)]`.

    `convert` checks it, as do `parse` and `check_fields`, and `--help-all` shows it. None and
    texts pass. Every number of a list or mapping is checked. NaN is out of every range.

    Attributes:
        least: smallest number. Default: no bound.
        most: largest number. Default: no bound.
        unit: unit of the numbers in messages, such as bits.
        above: exclusive lower bound, in place of `least`.
        below: exclusive upper bound, in place of `most`.

    >>> str(Range(1, 32, "bits")), str(Range(1)), str(Range(0, below=1)), str(Range(above=0))
    ('1 to 32 bits', '1 or more', '0 to below 1', 'more than 0')
    """

    least: float | None = None
    most: float | None = None
    unit: str = ""
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: Any) -> bool:
        return bool(
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        last = self.most if self.below is None else f"below {self.below}"
        if last is None:
            text = f"{self.least} or more" if self.above is None else f"more than {self.above}"
        else:
            text = f"{self.least if self.above is None else f'above {self.above}'} to {last}"
        return f"{text} {self.unit}".rstrip()

    def check(self, value: Any, where: str) -> None:
        """Raises ConfigError if `value`, or a number in it, is out of range."""
        if isinstance(value, Mapping):
            for key, member in value.items():
                self.check(member, f"{where}['{key}']")
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, numbers.Real) and number not in self:
                is_percent = 1 in (self.most, self.below) and PERCENT <= float(number) <= 100
                advice = f"; for {number:g} %, write {number / 100:g}" if is_percent else ""
                raise ConfigError(f"{where}: got {number}, expected {self}{advice}.")
