"""Stratified splits: the rows of each class are divided in proportion."""

from __future__ import annotations

import numpy as np


def stratified_split(
    order: np.ndarray, classes: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divides rows so that both parts have the classes in proportion, as far as possible.

    Counts are rounded by the largest remainder. A class with two rows or more is in both parts, for
    which frequent classes give up rows.

    Args:
        order: permutation of the row numbers, (N,); each part has its rows in this order.
        classes: class of each row, (N,), of any sortable type.
        count: number of rows of the first part, 1 to N - 1. With more than `count` classes the
            parts are not stratified.
    Returns: row numbers of the first part, and of the others.
    """
    _, numbers, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    if len(sizes) > count:
        return order[:count], order[count:]
    share = sizes * count / len(order)
    taken = np.floor(share).astype(int)
    taken[np.argsort(taken - share, kind="stable")[: count - taken.sum()]] += 1
    taken = np.minimum(np.maximum(taken, 1), sizes - 1)
    for _ in range(taken.sum() - count):  # rare classes got a row each
        taken[np.argmax(taken)] -= 1
    if not taken.sum():
        return order[:count], order[count:]
    by_class = np.argsort(numbers[order], kind="stable")
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_first = np.zeros(len(order), bool)
    is_first[by_class] = ranks < np.repeat(taken, sizes)
    return order[is_first], order[~is_first]
