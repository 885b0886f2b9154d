"""Passes that look and note."""
