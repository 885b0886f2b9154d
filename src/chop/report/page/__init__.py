"""Page of one or more runs: `report.html`, one file that any browser opens."""

__all__: list[str] = []
