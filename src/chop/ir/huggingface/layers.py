"""Comparison of the layers of a transformers model with those in its files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from chop.errors import CheckpointError

NUMBERED = re.compile(r"(?P<list>.+?)\.(?P<number>\d+)\.")


def check_layers(model: Any, missing: Iterable[str], where: str) -> None:
    """Raises an error if files have some layers of a list and no weight of another one.

    Raises:
        CheckpointError: if a layer is missing.
    """
    lacking, names = set(missing), [*model.state_dict()] if missing else []
    for path, count in _list_lengths(model).items() if lacking else ():
        own = {i: {x for x in names if x.startswith(f"{path}.{i}.")} for i in range(count)}
        without = [i for i, tensors in own.items() if tensors and tensors <= lacking]
        there = sum(not tensors <= lacking for tensors in own.values())
        if without and there:
            raise CheckpointError(
                f"{where}: its settings have {count} layers '{path}', and its files {there}: "
                f"'{path}.{without[0]}' is missing."
            )


def list_extra_layers(model: Any, unexpected: Iterable[str]) -> list[str]:
    """Returns the names of layers in the files that the model does not have.

    Args:
        model: loaded Hugging Face model.
        unexpected: names of tensors in the files without a place in the model.
    """
    counts = _list_lengths(model)
    places = (NUMBERED.match(name) for name in unexpected)
    extra = {
        f"{x['list']}.{x['number']}"
        for x in places
        if x is not None and int(x["number"]) >= counts.get(x["list"], int(x["number"]) + 1)
    }
    return sorted(extra)


def _list_lengths(model: nn.Module) -> dict[str, int]:
    """Returns the lengths of all layer lists by path."""
    named = model.named_modules()
    return {path: len(x) for path, x in named if isinstance(x, nn.ModuleList)}
