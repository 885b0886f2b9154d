"""Multiple-choice knapsack, exactly: the greatest sum of one option per choice under limits."""

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
"""After so long the best solution of an integer program found so far is taken."""
BISECTIONS = 50
ROUNDING = 1e-12
"""Of the greatest total: so far it may go beyond its limit."""
MOST_WAYS = 20_000
"""Ways to take the first choices' options beyond which merging gives up."""


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
    if not limits:
        return np.array([worth[d, :count].argmax() for d, count in enumerate(counts)])
    merged = by_merging(worth, counts, *limits[0]) if len(limits) == 1 else None
    return by_integer_program(worth, counts, limits) if merged is None else merged


def by_integer_program(
    worth: Array, counts: Sequence[int], limits: Sequence[tuple[Array, float]]
) -> Codes | None:
    """`best_sum` for any number of limits, by HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    choice = np.repeat(np.arange(len(counts)), counts)
    option = np.concatenate([np.arange(count) for count in counts])
    one_each = (choice[None, :] == np.arange(len(counts))[:, None]).astype(float)
    rules = [LinearConstraint(one_each, 1, 1)]
    rules += [LinearConstraint(total[choice, option], -np.inf, most) for total, most in limits]
    with _without_stdout():
        found = milp(
            -worth[choice, option],
            integrality=np.ones(len(choice)),
            bounds=Bounds(0, 1),
            constraints=rules,
            options={"time_limit": SECONDS},
        )
    return None if found.x is None else option[found.x > 0.5]


def by_merging(worth: Array, counts: Sequence[int], total: Array, most: float) -> Codes | None:
    """`best_sum` under one limit, in a fraction of an integer program's time.

    Choice by choice, all ways to take the options so far are kept that no other way beats in
    worth and total, and from which a bound says that the best known sum can still be reached.

    Returns: None where the limit leaves nothing, or the ways are too many.
    Source: Dyer, Kayal and Walker, A branch and bound algorithm for solving the multiple-choice
        knapsack problem, 1984 (the bound); Nemhauser and Ullmann, Discrete dynamic programming
        and capital allocation, 1969 (the merging).
    """
    absent = np.arange(worth.shape[1]) >= np.array(counts)[:, None]
    worth = np.where(absent, -np.inf, worth)
    total = np.where(absent, total[:, :1], total)
    # What fits exactly must not be lost because another order of adding rounds otherwise.
    room = ROUNDING * np.abs(total).max(1).sum()
    price = _price(worth, total, most + room)
    if price is None:
        return None
    known = np.take_along_axis(worth, _at_price(worth, total, price)[:, None], 1).sum()
    # Of the choices that come after: the least total, and the most worth at this price.
    least = _after(total.min(1))
    reach = _after((worth - price * total).max(1))
    slack = 1e-9 * (np.abs(known) + 1.0)
    ways, value, used = np.empty((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1)
    for place, count in enumerate(counts):
        value = (value[:, None] + worth[place, :count]).ravel()
        used = (used[:, None] + total[place, :count]).ravel()
        can_fit = used + least[place] <= most + 2 * room
        bound = value + reach[place] + price * (most + 2 * room - used)
        kept = np.flatnonzero(can_fit & (bound >= known - slack))
        kept = kept[np.lexsort((-value[kept], used[kept]))]
        highest = np.maximum.accumulate(value[kept])
        kept = kept[np.append(True, value[kept][1:] > highest[:-1])]
        if len(kept) > MOST_WAYS:
            return None
        value, used = value[kept], used[kept]
        ways = np.column_stack([ways[kept // count], kept % count])
    best: Codes = ways[value.argmax()]
    return best


def _at_price(worth: Array, total: Array, price: float) -> Codes:
    """(D,): the options that are worth most, less what their totals cost."""
    options: Codes = (worth - price * total).argmax(1)
    return options


def _price(worth: Array, total: Array, most: float) -> float | None:
    """The least price of a total at which each choice's best option keeps within the limit.

    It is the dual variable of the relaxed program; None where no price is high enough.
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
        low, high = high, 4 * high
    else:
        return None
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _after(values: Array) -> Array:
    """(D,) -> (D,): the sum of the values that come after each."""
    return values[::-1].cumsum()[::-1] - values


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    """Inside, what C code prints goes nowhere.

    Where HiGHS repairs a solution that its tolerances broke, it prints the name of its function
    (`transformNewIntegerFeasibleSolution`), whatever its settings for output say.
    """
    try:
        kept = os.dup(1) if os.name == "posix" else None
    except OSError:  # a process without standard output
        kept = None
    if kept is None:
        yield
        return
    flush_c = ctypes.CDLL(None).fflush
    with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or it is closed
        sys.stdout.flush()
    flush_c(None)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
        flush_c(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
