"""Numeric ranges as users write them: `4:32:4`, `0.1:0.9:0.1`, `8,16`."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from chop.errors import ConfigError

MAX_VALUES = 1000
ONE = Decimal(1)


def parse_range(text: str | float | Iterable[float], where: str) -> tuple[float, ...]:
    """Returns the distinct numbers of a range in ascending order.

    Args:
        text: numbers and ranges `first:last:step` (default step 1, both ends included), separated
            by commas; or the numbers themselves.
        where: name of the setting, for messages.
    Raises:
        ConfigError: if it is malformed, empty, or has more than `MAX_VALUES` values.

    >>> parse_range("4:16:4, 32", "widths")
    (4, 8, 12, 16, 32)
    >>> parse_range("0.1:0.3:0.1", "sparsity")
    (0.1, 0.2, 0.3)
    """
    if isinstance(text, str):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        values = {value for part in parts for value in _range(part, where)}
    elif isinstance(text, Iterable):
        values = set(text)
    else:
        return (text,)
    if not values:
        raise ConfigError(f"{where}: expected at least one number, got {text!r}.")
    return tuple(sorted(values))


def whole(values: Iterable[float], where: str) -> tuple[int, ...]:
    """Converts numbers to integers.

    Raises:
        ConfigError: if a number has a fraction.
    """
    numbers = tuple(values)
    for value in numbers:
        if value != int(value):
            raise ConfigError(f"{where}: expected whole numbers, got {value}.")
    return tuple(int(value) for value in numbers)


def _range(part: str, where: str) -> list[float]:
    # Decimals: in binary 0.1 + 0.1 + 0.1 is not 0.3, and the last value would be missed.
    try:
        first, *rest = (Decimal(number) for number in part.split(":"))
        last, step = {0: (first, ONE), 1: (*rest, ONE), 2: rest}[len(rest)]
        if not all(number.is_finite() for number in (first, last, step)):
            raise InvalidOperation
    except (InvalidOperation, KeyError):
        raise ConfigError(
            f"{where}: '{part}' is neither a number nor first:last:step, such as "
            "4:32:4 or 0.1:0.9:0.1."
        ) from None
    if step <= 0 or last < first or (last - first) / step > MAX_VALUES:
        raise ConfigError(
            f"{where}: '{part}': expected first <= last, a step above 0 and at most "
            f"{MAX_VALUES} values."
        )
    if first < last < first + step:
        raise ConfigError(
            f"{where}: '{part}' has only its first value, since the step is {step}; give a smaller "
            f"step, such as {first}:{last}:{min(ONE, (last - first) / 4):f}."
        )
    values = [first + i * step for i in range(int((last - first) / step) + 1)]
    return [int(value) if value == int(value) else float(value) for value in values]
