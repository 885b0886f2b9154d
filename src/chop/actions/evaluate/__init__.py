"""Evaluation job: a model judged on rows and by tasks of lm-eval, beside its float model."""

__all__: list[str] = []
