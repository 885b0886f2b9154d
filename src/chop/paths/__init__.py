"""MASE's import paths: tables of modules without a file, and their finder."""

__all__: list[str] = []
