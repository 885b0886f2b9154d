"""Studies on the measuring engine: what `chop bench` compares."""

__all__: list[str] = []
