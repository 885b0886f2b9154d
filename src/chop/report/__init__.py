"""Reports: tables and plots of measured rows."""

__all__: list[str] = []
