"""Hugging Face's side of a graph: its models' attention, and folders that it loads."""

__all__: list[str] = []
