"""Page of one or more runs: `report.html`, a self-contained file for any browser."""

__all__: list[str] = []
