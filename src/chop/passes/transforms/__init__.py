"""Passes that change the graph; each returns a new one."""
