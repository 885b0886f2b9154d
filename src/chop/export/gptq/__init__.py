"""GPTQ and AWQ: the export target and the readers of folders."""

__all__: list[str] = []
