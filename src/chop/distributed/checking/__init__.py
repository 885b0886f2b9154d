"""Check of a sharded model: its values beside those of one process, node by node."""

__all__: list[str] = []
