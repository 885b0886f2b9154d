"""Block walk: a decoder is rounded with one block of floats in memory."""

__all__: list[str] = []
