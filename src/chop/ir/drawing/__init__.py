"""Graph drawing: boxes and lines in an SVG file."""

__all__: list[str] = []
