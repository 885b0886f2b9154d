"""LoRA adapters of graphs: selection of layers, insertion, and PEFT's file format."""

__all__: list[str] = []
