"""Pictures: paths of SVG and PNG files, which notebooks show."""

from __future__ import annotations

from pathlib import Path


class Picture(type(Path())):  # type: ignore[misc]
    """Path of a picture that was written; IPython's display protocol shows it in a notebook.

    Source: IPython, "Integrating your objects with IPython", rich display.
    """

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        return self.read_text(encoding="utf-8") if self.suffix.lower() == ".svg" else None

    def _repr_png_(self) -> bytes | None:
        return self.read_bytes() if self.suffix.lower() == ".png" else None
