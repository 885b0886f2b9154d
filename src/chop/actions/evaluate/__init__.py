"""Evaluation job: a model on rows and lm-eval tasks, compared with its float model."""

__all__: list[str] = []
