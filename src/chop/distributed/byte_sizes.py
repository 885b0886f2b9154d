"""Byte sizes as text."""

from __future__ import annotations

import re

from chop.errors import PlanError, describe

UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(value: int | str, where: str = "memory") -> int:
    """Parses bytes from a number, or from text with a unit kB, MB, GB, TB, KiB, MiB, GiB or TiB.

    >>> parse_bytes("4GB"), parse_bytes("1.5 MiB"), parse_bytes(100)
    (4000000000, 1572864, 100)

    Raises:
        PlanError: if it is neither, or below one byte.
    """
    match = _SIZE.fullmatch(str(value)) if not isinstance(value, bool | float) else None
    unit = UNITS.get((match[2] or "b").lower()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise PlanError(
            f"{where}: expected bytes, such as 4GB, 512MiB or 1000000, got {describe(value)}."
        )
    return size
