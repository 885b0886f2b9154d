"""LoRA adapters of graphs: which layers get one, and PEFT's file format."""

__all__: list[str] = []
