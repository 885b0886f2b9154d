"""Search problems: mixed precision and neural architectures."""

__all__: list[str] = []
