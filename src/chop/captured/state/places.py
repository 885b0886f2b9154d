"""Places where code reads values, with one fast comparison of all of them.

A call of a captured model compares every value that its code reads: a loop would take longer than
a small graph. So a function is compiled that compares the identity of each with what it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from chop.captured.state.code_search import first_line
from chop.captured.state.finder import SCOPE, Found, Keys, reader
from chop.captured.state.values import MISSING, PLAIN, content

_OTHER = "other content"
_MAX_PATIENCE = 64
"""Most calls between two searches for what was replaced."""
_Renew = Callable[..., None]


class _Place:
    """Values that code reads of one owner: attributes, items, variables of a closure.

    Args:
        owner: the object, container, function or file.
        part: expression that reads the values, with `{}` for the owner.
        keys: keys that code reads there.
        names: the attributes of objects that count.
        renew: is called where `condition` may be another, as at the end of an object.
    """

    def __init__(
        self, owner: Any, part: str, keys: Keys, names: Collection[str], renew: _Renew
    ) -> None:
        self._read = reader(part)
        self._part, self._described, self._names, self._renew = part, keys, names, renew
        now, again = self._read(owner), self._read(owner)
        known = now if ... in keys else [key for key in keys if key in now]
        self._missing = frozenset(keys) - now.keys() - {...}
        # What may lead to a model is not kept alive.
        self.owner = _weakly(owner, renew)
        self._kept = {key: _weakly(now[key], renew) for key in known}
        self._made = {key for key in known if now[key] is not again[key]}
        self._contents = {key: content(now[key], False, names) for key in known}
        self._shown = {k: repr(now[k]) if isinstance(now[k], PLAIN) else _OTHER for k in known}
        # A table of tensors may grow: a forward keeps there what a graph computes.
        is_fixed = ... in keys and not any(isinstance(x, Tensor) for x in now.values())
        self._size = len(now) if is_fixed else None

    def condition(self, number: int, names: dict[str, Any]) -> str:
        """Python that is true while every value is the same object, and else false or an error."""
        names[f"w{number}"], part = self.owner, self._part.format(f"w{number}()")
        if self._size is not None:
            names[f"i{number}"] = [id(get()) for get in self._kept.values()]
            return f"[*map(id, {part.removeprefix('numbered')})] == i{number}"
        names[f"i{number}"], tests = self._missing, [f"(m := {part}) is m"]
        if self._missing:
            tests.append(f"m.keys().isdisjoint(i{number})")
        for index, (key, get) in enumerate(self._kept.items()):
            is_weak, name = isinstance(get, weakref.ref), f"v{number}_{index}"
            names[name] = get if is_weak else get()
            same = "==" if key in self._made else "is"
            tests.append(f"m[{key!r}] {same} {name}{'()' if is_weak else ''}")
        return " and ".join(tests)

    def changes(self) -> list[str]:
        """Says what has changed."""
        owner = self.owner()
        if owner is None:
            return []
        now = self._read(owner)
        changes = [(key, "no value") for key in self._missing & now.keys()]
        for key, get in self._kept.items():
            value = now.get(key, MISSING)
            if value is get() and value is not None:  # what has ended is None too
                continue
            if content(value, False, self._names) != self._contents[key]:
                changes.append((key, self._shown[key]))
            elif isinstance(value, PLAIN) and value is not get():
                self._kept[key] = _weakly(value, self._renew)
                self._renew()
        if ... in self._described and (changes or self._size not in (None, len(now))):
            changes = [(..., _OTHER)]
        texts = ((*self._described[key], key, shown) for key, shown in dict.fromkeys(changes))
        return [
            f"{label}, read at {first_line(code, key)}, was captured with {shown}"
            for _, label, code, key, shown in texts
        ]


def _weakly(value: Any, on_end: _Renew) -> Callable[[], Any]:
    """Returns a function that gives a value, and does not keep it alive where that can be."""
    try:
        return weakref.ref(value, on_end)
    except TypeError:
        return lambda: value


class Places:
    """Everything that a model's code reads, as it was.

    Args:
        found: the owners.
        names: the attributes of objects that count.
        find_again: finds the owners of now, where values were replaced by equal objects.
    """

    def __init__(
        self, found: Found, names: Collection[str], find_again: Callable[[], Found | None]
    ) -> None:
        self._names, self._find_again = names, find_again
        self._calls, self._patience = 0, 1
        self._places: list[_Place] = []
        self._take(found)

    def changes(self) -> list[str]:
        """Says what has changed."""
        try:
            if self._is_same():
                return []
        except Exception:  # an owner, a key or a variable is gone
            pass
        changes = [text for place in self._places for text in place.changes()]
        if not changes:
            self._adopt()
        return list(dict.fromkeys(changes))

    def _adopt(self) -> None:
        """Takes equal objects for what was read, so that the next call is quick again."""
        self._calls += 1
        # A search takes as long as many calls, and some programs make new objects for each.
        found = self._find_again() if self._calls >= self._patience else None
        if found is not None:
            self._calls, self._patience = 0, min(2 * self._patience, _MAX_PATIENCE)
            self._take(found)
        elif self._is_old:
            self._places = [place for place in self._places if place.owner() is not None]
            self._compile()

    def _take(self, found: Found) -> None:
        self._is_same: Callable[[], bool] = bool
        self._places = [
            _Place(owner, part, keys, self._names, self._renew)
            for (_, part), (owner, keys) in found.items()
            if keys
        ]
        self._compile()

    def _renew(self, _: Any = None) -> None:
        self._is_old, self._is_same = True, bool  # it is False

    def _compile(self) -> None:
        names: dict[str, Any] = {**SCOPE}
        texts = [place.condition(number, names) for number, place in enumerate(self._places)]
        self._is_old = False
        self._is_same = eval(f"lambda: {' and '.join(texts) or True}", names)
