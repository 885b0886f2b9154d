"""Recorder: writes every torch call of a model into a graph."""
