"""GPTQ and AWQ: the target and the readers of folders."""

__all__: list[str] = []
