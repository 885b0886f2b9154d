"""Rows as users give them: arrays, frames, loaders and lists, checked and read."""

__all__: list[str] = []
