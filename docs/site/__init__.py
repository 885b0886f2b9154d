"""Documentation site: its pages are those of `docs`, and others that are made from the code."""
