"""LoRA adapters of graphs: selection of layers, and PEFT's file format."""

__all__: list[str] = []
