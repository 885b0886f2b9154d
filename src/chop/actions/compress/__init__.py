"""Compression job: settings, measurements, report and page of `chop compress`."""

__all__: list[str] = []
