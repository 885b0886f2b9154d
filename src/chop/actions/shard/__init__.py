"""Shard job: a model on several processes, beside one process."""

__all__: list[str] = []
