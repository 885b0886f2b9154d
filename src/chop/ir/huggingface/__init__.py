"""Hugging Face integration: attention of its models, and model folders."""

__all__: list[str] = []
