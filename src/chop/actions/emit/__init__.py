"""Circuit jobs: `chop lower` and `chop emit`, and the simulation of a project."""

__all__: list[str] = []
