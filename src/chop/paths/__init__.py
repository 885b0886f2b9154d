"""Import paths of MASE and of moved modules: tables and their finder."""

__all__: list[str] = []
