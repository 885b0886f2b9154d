"""Check of splits, which most functions of this package take."""

from __future__ import annotations

from typing import Any

from chop.errors import ConfigError

SPLITS = ("train", "validation", "test")
"""Names of the splits that `chop` uses."""


def check_splits(data: Any) -> None:
    """Checks that data are splits of `datasets` by name.

    Raises:
        ConfigError: if they are something else.
    """
    import datasets

    hint = ""
    if isinstance(data, dict) and data:
        others = {k: x for k, x in data.items() if not isinstance(x, datasets.Dataset)}
        if not others:
            return
        name, other = next(iter(others.items()))
        given = f"a {type(other).__name__} as '{name}'"
        hint = "; chop.compress, chop.quantize and chop.train take arrays, frames and loaders"
    else:
        given = (
            "None"
            if data is None
            else "no split"
            if isinstance(data, dict)
            else type(data).__name__
        )
        hint = "; pass {'train': it}" if isinstance(data, datasets.Dataset) else ""
    raise ConfigError(
        f"data set: expected a name, a path or a datasets.DatasetDict, got {given}{hint}."
    )
