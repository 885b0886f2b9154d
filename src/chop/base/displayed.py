"""Display of what jobs return: printed in short, and in notebooks as the report it is from."""

from __future__ import annotations

import copy
import dataclasses
from typing import Protocol, TypeVar


class Display(Protocol):
    """What is shown in the place of a result."""

    def text(self) -> str:
        """For the terminal: the outcome in short."""

    def html(self) -> str:
        """For notebooks: the whole report."""


class Displayed:
    """Mixin of results that are too long to print whole; dataclasses of it take `repr=False`.

    The display is no field: results are equal, and written as JSON, without it.
    """

    _display: Display | None = None

    def __repr__(self) -> str:
        return self._without_display() if self._display is None else self._display.text()

    def _repr_html_(self) -> str | None:
        return None if self._display is None else self._display.html()

    def _without_display(self) -> str:
        """As Python prints it."""
        if not dataclasses.is_dataclass(self):
            return super().__repr__()
        fields = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
        return f"{type(self).__qualname__}({', '.join(fields)})"


D = TypeVar("D", bound=Displayed)


def displayed(result: D, display: Display) -> D:
    """A copy of a result with a display."""
    shown = copy.copy(result)
    object.__setattr__(shown, "_display", display)  # of frozen dataclasses, too
    return shown
