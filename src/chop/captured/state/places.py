"""Places that code reads values from, with one fast comparison for all of them.

A call of a captured model compares every value that its code reads. A loop would take longer than a
small graph, so a compiled function compares the identity of each value with that at capture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from chop.captured.state.code_search import first_line
from chop.captured.state.finder import SCOPE, Keys, Owners, reader
from chop.captured.state.values import MISSING, PLAIN, content

_OTHER = "other content"
_MAX_PATIENCE = 64
"""Maximum number of calls between two searches for replaced values."""
_Renew = Callable[..., None]


class _Place:
    """Values of one owner that code reads: attributes, items, variables of a closure.

    Args:
        owner: the object, container, function or file.
        part: expression that reads the values, with `{}` for the owner.
        keys: keys that code reads.
        names: relevant attributes of objects.
        renew: called if `condition` may have changed, such as at the end of an object.
    """

    def __init__(
        self, owner: Any, part: str, keys: Keys, names: Collection[str], renew: _Renew
    ) -> None:
        self._read = reader(part)
        self._part, self._described, self._names, self._renew = part, keys, names, renew
        now, again = self._read(owner), self._read(owner)
        known = now if ... in keys else [key for key in keys if key in now]
        self._missing = frozenset(keys) - now.keys() - {...}
        # Weak references, since the values may reference a model.
        self.owner = _weakly(owner, renew)
        self._values = {key: _weakly(now[key], renew) for key in known}
        self._made = {key for key in known if now[key] is not again[key]}
        self._contents = {key: content(now[key], False, names) for key in known}
        self._descriptions = {
            k: repr(now[k]) if isinstance(now[k], PLAIN) else _OTHER for k in known
        }
        # A table of tensors may grow, because a forward stores there what a graph computes.
        is_fixed = ... in keys and not any(isinstance(x, Tensor) for x in now.values())
        self._size = len(now) if is_fixed else None

    def condition(self, number: int, names: dict[str, Any]) -> str:
        """Returns a Python condition that is true while every value is the same object.

        Otherwise it is false or raises.
        """
        names[f"w{number}"], part = self.owner, self._part.format(f"w{number}()")
        if self._size is not None:
            names[f"i{number}"] = [id(get()) for get in self._values.values()]
            return f"[*map(id, {part.removeprefix('numbered')})] == i{number}"
        names[f"i{number}"], tests = self._missing, [f"(m := {part}) is m"]
        if self._missing:
            tests.append(f"m.keys().isdisjoint(i{number})")
        for index, (key, get) in enumerate(self._values.items()):
            is_weak, name = isinstance(get, weakref.ref), f"v{number}_{index}"
            names[name] = get if is_weak else get()
            same = "==" if key in self._made else "is"
            tests.append(f"m[{key!r}] {same} {name}{'()' if is_weak else ''}")
        return " and ".join(tests)

    def changes(self) -> list[str]:
        """Describes the changes."""
        owner = self.owner()
        if owner is None:
            return []
        now = self._read(owner)
        changes = [(key, "no value") for key in self._missing & now.keys()]
        for key, get in self._values.items():
            value = now.get(key, MISSING)
            if value is get() and value is not None:  # a dead weak reference returns None as well
                continue
            if content(value, False, self._names) != self._contents[key]:
                changes.append((key, self._descriptions[key]))
            elif isinstance(value, PLAIN) and value is not get():
                self._values[key] = _weakly(value, self._renew)
                self._renew()
        if ... in self._described and (changes or self._size not in (None, len(now))):
            changes = [(..., _OTHER)]
        texts = (
            (*self._described[key], key, description) for key, description in dict.fromkeys(changes)
        )
        return [
            f"{label}, read at {first_line(code, key)}, was captured with {old}"
            for _, label, code, key, old in texts
        ]


def _weakly(value: Any, on_end: _Renew) -> Callable[[], Any]:
    """Returns a function that returns a value, with a weak reference if possible."""
    try:
        return weakref.ref(value, on_end)
    except TypeError:
        return lambda: value


class Places:
    """All values that a model's code reads, as they were at capture.

    Args:
        owners: the owners.
        names: relevant attributes of objects.
        find_again: returns the current owners, after values were replaced by equal objects.
    """

    def __init__(
        self, owners: Owners, names: Collection[str], find_again: Callable[[], Owners | None]
    ) -> None:
        self._names, self._find_again = names, find_again
        self._calls, self._patience = 0, 1
        self._places: list[_Place] = []
        self._take(owners)

    def changes(self) -> list[str]:
        """Describes the changes."""
        try:
            if self._is_same():
                return []
        except Exception:  # an owner, a key or a variable no longer exists
            pass
        changes = [text for place in self._places for text in place.changes()]
        if not changes:
            self._adopt()
        return list(dict.fromkeys(changes))

    def _adopt(self) -> None:
        """Accepts equal objects in place of the originals, so that the next call is fast again."""
        self._calls += 1
        # A search takes as long as many calls, and some programs make new objects for each.
        owners = self._find_again() if self._calls >= self._patience else None
        if owners is not None:
            self._calls, self._patience = 0, min(2 * self._patience, _MAX_PATIENCE)
            self._take(owners)
        elif self._is_old:
            self._places = [place for place in self._places if place.owner() is not None]
            self._compile()

    def _take(self, owners: Owners) -> None:
        self._is_same: Callable[[], bool] = bool
        self._places = [
            _Place(owner, part, keys, self._names, self._renew)
            for (_, part), (owner, keys) in owners.items()
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
