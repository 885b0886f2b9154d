"""Weak caches for classes and code objects."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Concatenate, ParamSpec, TypeVar

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


def weakly_cached(function: Callable[Concatenate[K, P], T]) -> Callable[Concatenate[K, P], T]:
    """Caches a function of a class or of code until that is gone.

    A class may be local to a function or to a cell of a notebook, and each graph has a class and
    code of its own: `functools.cache` would keep all of them, and what their closures hold.

    Args:
        function: its answers refer neither to its first argument nor to what that belongs to; its
            other arguments are hashable.
    """
    answers: MutableMapping[K, dict[Any, T]] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def cached(key: K, /, *args: P.args, **kwargs: P.kwargs) -> T:
        known = answers.get(key)
        if known is None:
            known = answers[key] = {}
        if args not in known:
            known[args] = function(key, *args, **kwargs)
        return known[args]

    return cached
