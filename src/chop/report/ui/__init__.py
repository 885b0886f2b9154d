"""Server of pages: the runs of a folder, and the progress of those that are running."""

__all__: list[str] = []
