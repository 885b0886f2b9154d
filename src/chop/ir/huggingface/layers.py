"""Layers of a model of transformers, compared with those that its files have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from chop.errors import CheckpointError

NUMBERED = re.compile(r"(?P<list>.+?)\.(?P<number>\d+)\.")


def check_layers(model: Any, missing: Iterable[str], where: str) -> None:
    """Raises an error where files have some layers of a list and lack all of another one's weights.

    Raises:
        CheckpointError: a layer is not there.
    """
    lacking, names = set(missing), [*model.state_dict()] if missing else []
    for path, count in _lists(model).items() if lacking else ():
        own = {i: {x for x in names if x.startswith(f"{path}.{i}.")} for i in range(count)}
        without = [i for i, tensors in own.items() if tensors and tensors <= lacking]
        there = sum(not tensors <= lacking for tensors in own.values())
        if without and there:
            raise CheckpointError(
                f"{where}: its settings have {count} layers '{path}', and its files {there}: "
                f"'{path}.{without[0]}' is not there."
            )


def spare_layers(model: Any, unexpected: Iterable[str]) -> list[str]:
    """Layers that files have beyond those of the model, by name.

    Args:
        model: of transformers, loaded.
        unexpected: names of tensors in the files that it has no place for.
    """
    counts = _lists(model)
    places = (NUMBERED.match(name) for name in unexpected)
    found = {
        f"{x['list']}.{x['number']}"
        for x in places
        if x is not None and int(x["number"]) >= counts.get(x["list"], int(x["number"]) + 1)
    }
    return sorted(found)


def _lists(model: nn.Module) -> dict[str, int]:
    """Layers of every list of them by path."""
    named = model.named_modules()
    return {path: len(x) for path, x in named if isinstance(x, nn.ModuleList)}
