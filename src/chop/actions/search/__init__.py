"""Search jobs: load a workload, search, write tables and plots."""

__all__: list[str] = []
