"""Why a recording stopped."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Blocked:
    """Where a recording stopped.

    Args:
        path: the innermost module that was running; `""` is the model itself.
        where: `file:line` in that module.
        error: what was raised there.
        needs_shapes: `path` is a leaf whose output shapes have to be seen in a real run.
    """

    path: str
    where: str
    error: Exception
    needs_shapes: bool = False

    def __str__(self) -> str:
        text = str(self.error).strip() or "no message"
        return f"{type(self.error).__name__}: {text.splitlines()[0]}, at {self.where}"
