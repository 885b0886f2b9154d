"""Paths of SVG and PNG files that notebooks display."""

from __future__ import annotations

from pathlib import Path

from chop.base.files.reading import read_bytes, read_text


class Picture(type(Path())):  # type: ignore[misc]
    """Path of a written picture, which notebooks display through IPython's display protocol.

    Source: IPython, "Integrating your objects with IPython", rich display.
    """

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        is_svg = self.suffix.lower() == ".svg" and self.is_file()
        return read_text(self, "picture") if is_svg else None

    def _repr_png_(self) -> bytes | None:
        is_png = self.suffix.lower() == ".png" and self.is_file()
        return read_bytes(self, "picture") if is_png else None
