"""Check of a sharded model against a single process, node by node."""

__all__: list[str] = []
