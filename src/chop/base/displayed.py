"""Short text of a job's result in a terminal, its full report in a notebook."""

from __future__ import annotations

import copy
import dataclasses
from typing import Protocol, TypeVar


class Display(Protocol):
    """Display of a result."""

    def text(self) -> str:
        """Returns the short outcome for a terminal."""

    def html(self) -> str:
        """Returns the full report for a notebook."""


class Displayed:
    """Mixin of results that are too long to print. Dataclasses with it use `repr=False`.

    The display is not a field, so it affects neither equality nor JSON.
    """

    _display: Display | None = None

    def __repr__(self) -> str:
        return self._without_display() if self._display is None else self._display.text()

    def _repr_html_(self) -> str | None:
        return None if self._display is None else self._display.html()

    def _without_display(self) -> str:
        """Returns the default representation."""
        if not dataclasses.is_dataclass(self):
            return super().__repr__()
        fields = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
        return f"{type(self).__qualname__}({', '.join(fields)})"


D = TypeVar("D", bound=Displayed)


def displayed(result: D, display: Display) -> D:
    """Returns a copy of a result with a display."""
    copied = copy.copy(result)
    object.__setattr__(copied, "_display", display)  # works for frozen dataclasses
    return copied
