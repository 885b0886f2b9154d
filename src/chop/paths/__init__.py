"""MASE's import paths and those of moved modules: tables, and their finder."""

__all__: list[str] = []
