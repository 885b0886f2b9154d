"""Web server for the runs of a folder and the progress of running ones."""

__all__: list[str] = []
