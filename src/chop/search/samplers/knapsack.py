"""Exact multiple-choice knapsack: greatest sum of one option per choice under limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from chop.search.samplers.surrogate import Array, Codes

SECONDS = 5.0
"""Time limit after which the best solution so far of an integer program is used."""
BISECTIONS = 50
ROUNDING = 1e-12
"""Tolerance of a limit, relative to the greatest total."""
MAX_PARTIAL = 20_000
"""Maximum number of partial solutions before merging gives up."""


def best_sum(
    worth: Array, counts: Sequence[int], limits: Sequence[tuple[Array, float]] = ()
) -> Codes | None:
    """Returns the options of greatest total worth within all limits.

    Args:
        worth: (D, K) worth of each option. For choice d, entries k < counts[d] are valid.
        counts: number of options of each choice.
        limits: pairs of option weights (D, K) and the maximum total weight.
    Returns: option index of each choice (D,), or None if the limits exclude all.
    """
    if not limits:
        return np.array([worth[d, :count].argmax() for d, count in enumerate(counts)])
    merged = by_merging(worth, counts, *limits[0]) if len(limits) == 1 else None
    return by_integer_program(worth, counts, limits) if merged is None else merged


def by_integer_program(
    worth: Array, counts: Sequence[int], limits: Sequence[tuple[Array, float]]
) -> Codes | None:
    """Solves `best_sum` for any number of limits by HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    choice = np.repeat(np.arange(len(counts)), counts)
    option = np.concatenate([np.arange(count) for count in counts])
    one_each = (choice[None, :] == np.arange(len(counts))[:, None]).astype(float)
    rules = [LinearConstraint(one_each, 1, 1)]
    rules += [LinearConstraint(total[choice, option], -np.inf, most) for total, most in limits]
    with _without_stdout():
        solution = milp(
            -worth[choice, option],
            integrality=np.ones(len(choice)),
            bounds=Bounds(0, 1),
            constraints=rules,
            options={"time_limit": SECONDS},
        )
    return None if solution.x is None else option[solution.x > 0.5]


def by_merging(worth: Array, counts: Sequence[int], total: Array, most: float) -> Codes | None:
    """Solves `best_sum` for one limit in a fraction of the time of an integer program.

    Choice by choice, partial solutions are extended by each option. A solution survives if no other
    dominates it in worth and total, and an upper bound shows that it can reach the best known sum.

    Returns: option indices (D,), or None if the limit excludes all, or there are too many partial
    solutions.

    Source: Dyer, Kayal and Walker, A branch and bound algorithm for solving the multiple-choice
    knapsack problem, 1984 (the bound); Nemhauser and Ullmann, Discrete dynamic programming and
    capital allocation, 1969 (the merging).
    """
    absent = np.arange(worth.shape[1]) >= np.array(counts)[:, None]
    # Padding is never chosen, and its weight repeats the first option's, so no bound changes.
    worth = np.where(absent, -np.inf, worth)
    total = np.where(absent, total[:, :1], total)
    # The slack accepts exact fits despite rounding in another order of summation.
    room = ROUNDING * np.abs(total).max(1).sum()
    price = _price(worth, total, most + room)
    if price is None:
        return None
    # The best options at the lowest feasible price are a solution, and so a lower bound.
    known = np.take_along_axis(worth, _at_price(worth, total, price)[:, None], 1).sum()
    # Bounds over the remaining choices: least weight, and greatest worth at this price.
    least = _after(total.min(1))
    reach = _after((worth - price * total).max(1))
    slack = 1e-9 * (np.abs(known) + 1.0)
    partial, value, used = np.empty((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1)
    for place, count in enumerate(counts):
        value = (value[:, None] + worth[place, :count]).ravel()
        used = (used[:, None] + total[place, :count]).ravel()
        # Prune partial solutions that exceed the limit at best, or cannot reach the known sum.
        can_fit = used + least[place] <= most + 2 * room
        bound = value + reach[place] + price * (most + 2 * room - used)
        surviving = np.flatnonzero(can_fit & (bound >= known - slack))
        # In order of weight, a partial solution is nondominated if its worth is a new maximum.
        surviving = surviving[np.lexsort((-value[surviving], used[surviving]))]
        highest = np.maximum.accumulate(value[surviving])
        surviving = surviving[np.append(True, value[surviving][1:] > highest[:-1])]
        if len(surviving) > MAX_PARTIAL:
            return None
        value, used = value[surviving], used[surviving]
        partial = np.column_stack([partial[surviving // count], surviving % count])
    best: Codes = partial[value.argmax()]
    return best


def _at_price(worth: Array, total: Array, price: float) -> Codes:
    """Returns the options (D,) of greatest worth minus price times weight."""
    options: Codes = (worth - price * total).argmax(1)
    return options


def _price(worth: Array, total: Array, most: float) -> float | None:
    """Returns the lowest price at which the best option of each choice meets the limit.

    It is the dual variable of the relaxed program. None if no price is high enough.
    """

    def fits(price: float) -> bool:
        taken = _at_price(worth, total, price)
        return bool(np.take_along_axis(total, taken[:, None], 1).sum() <= most)

    if fits(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        if fits(high):
            break
        # Exponential search for a price that meets the limit, followed by bisection.
        low, high = high, 4 * high
    else:
        return None
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _after(values: Array) -> Array:
    """Returns the sum of the values after each position, (D,) -> (D,)."""
    return values[::-1].cumsum()[::-1] - values


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    """Context manager that discards the standard output of C code.

    HiGHS prints the name of a function (`transformNewIntegerFeasibleSolution`) when it repairs a
    solution, regardless of its output settings.
    """
    try:
        saved = os.dup(1) if os.name == "posix" else None
    except OSError:  # a process without standard output
        saved = None
    if saved is None:
        yield
        return
    flush_c = ctypes.CDLL(None).fflush
    with contextlib.suppress(AttributeError, OSError, ValueError):  # missing or closed
        sys.stdout.flush()
    flush_c(None)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
        flush_c(None)
    finally:
        os.dup2(saved, 1)
        os.close(saved)
