"""Export job: writes files for other engines, reads them back and verifies them."""

__all__: list[str] = []
