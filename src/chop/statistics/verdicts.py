"""Verdicts on two configurations from confidence intervals of their difference."""

from __future__ import annotations

from collections.abc import Mapping


def get_sign(ends: tuple[float, float]) -> int:
    """Returns 1 if an interval is above 0, -1 if it is below 0, and 0 if it contains 0."""
    low, high = ends
    return (low > 0) - (high < 0)


def write_verdict(signs: Mapping[str, int], goal: str, label: str) -> str:
    """Returns the verdict on two configurations in words.

    >>> write_verdict({"accuracy": -1, "kl": 1}, "kl", "no search")
    'better than no search in kl beyond the error, but worse in accuracy'
    """
    own = signs[goal]
    verdict = {1: "better", 0: "not better", -1: "worse"}[own]
    parts = [f"{verdict} than {label} in {goal} beyond the error"]
    for name, sign in signs.items():
        if name != goal and sign:
            joined = "and" if (sign > 0) == (own > 0) else "but"
            parts.append(f"{joined} {'better' if sign > 0 else 'worse'} in {name}")
    return ", ".join(parts)
