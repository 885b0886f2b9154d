"""Drawing of graphs: boxes and lines as an SVG file."""

__all__: list[str] = []
