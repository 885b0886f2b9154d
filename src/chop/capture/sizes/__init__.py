"""Symbolic sizes: symbols, their conditions, and sizes that depend on data."""
