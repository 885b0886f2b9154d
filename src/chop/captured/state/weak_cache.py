"""Weak caches for classes and code objects."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Concatenate, ParamSpec, TypeVar

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


def weak_cache(function: Callable[Concatenate[K, P], T]) -> Callable[Concatenate[K, P], T]:
    """Caches a function of a class or code object until that is freed.

    A class may be local to a function or to a notebook cell, and each graph has its own class and
    code. `functools.cache` would keep all of them and their closures alive.

    Args:
        function: its results refer neither to its first argument nor to anything that holds it; its
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
