"""Base utilities: files, tables, native builds, child processes, notices, plug-ins."""

__all__: list[str] = []
