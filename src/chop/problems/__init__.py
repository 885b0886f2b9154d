"""Search problems on the search engine: mixed precision and architectures."""

__all__: list[str] = []
