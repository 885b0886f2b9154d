"""Byte sizes as texts."""

from __future__ import annotations

import re

from chop.errors import PlanError

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
    """Bytes from a number, or from a text with a unit: kB, MB, GB, TB, KiB, MiB, GiB or TiB.

    >>> parse_bytes("4GB"), parse_bytes("1.5 MiB"), parse_bytes(100)
    (4000000000, 1572864, 100)

    Raises:
        PlanError: it is neither, or below one byte.
    """
    found = _SIZE.fullmatch(str(value)) if not isinstance(value, bool | float) else None
    unit = UNITS.get((found[2] or "b").lower()) if found else None
    size = int(float(found[1]) * unit) if found and unit else 0
    if size < 1:
        raise PlanError(f"{where}: expected bytes, as 4GB, 512MiB or 1000000, got {value!r}.")
    return size
