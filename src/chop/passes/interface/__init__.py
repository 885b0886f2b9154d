"""Passes that carry a graph to and from other places."""
