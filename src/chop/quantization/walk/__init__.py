"""Block walk: rounding of a decoder with one float block in memory."""

__all__: list[str] = []
