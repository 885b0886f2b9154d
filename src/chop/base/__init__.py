"""Foundation packages: files, tables, native builds, child processes, notices, plugins."""

__all__: list[str] = []
