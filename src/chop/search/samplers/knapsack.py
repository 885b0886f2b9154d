"""The best sum of one option per choice, under limits: multiple-choice knapsack, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chop.search.samplers.surrogate import Array, Codes

SECONDS = 5.0
"""After so long the best solution found so far is taken."""


def best_sum(
    worth: Array, counts: Sequence[int], limits: Sequence[tuple[Array, float]] = ()
) -> Codes | None:
    """The options of greatest total worth whose every limited total keeps within its limit.

    Args:
        worth: (D, K): what each option of each choice adds; (d, k) counts for k < counts[d].
        counts: options of each choice.
        limits: pairs of what each option adds to a total (D, K), and the most it may be.
    Returns: (D,) the place of the option of each choice; None where the limits leave nothing.
    """
    choice = np.repeat(np.arange(len(counts)), counts)
    option = np.concatenate([np.arange(count) for count in counts])
    if not limits:
        return np.array([worth[d, :count].argmax() for d, count in enumerate(counts)])
    taken = _solve(worth[choice, option], choice, [(t[choice, option], most) for t, most in limits])
    return None if taken is None else option[taken]


def _solve(
    worth: Array, choice: Codes, limits: Sequence[tuple[Array, float]]
) -> NDArray[np.bool_] | None:
    from scipy.optimize import Bounds, LinearConstraint, milp

    one_each = (choice[None, :] == np.arange(choice[-1] + 1)[:, None]).astype(float)
    rules = [LinearConstraint(one_each, 1, 1)]
    rules += [LinearConstraint(total[None, :], -np.inf, most) for total, most in limits]
    found = milp(
        -worth,
        integrality=np.ones_like(worth),
        bounds=Bounds(0, 1),
        constraints=rules,
        options={"time_limit": SECONDS},
    )
    return None if found.x is None else found.x > 0.5
