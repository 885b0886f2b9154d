"""Shard job: runs a model on several processes, and compares it with one process."""

__all__: list[str] = []
