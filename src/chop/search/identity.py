"""Identity of option values as text, equal in all processes.

A study stores the texts of its options, and a resumed study checks that they still denote the same
values.
"""

from __future__ import annotations

import copyreg
import dataclasses
import json
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from functools import cached_property
from hashlib import sha256
from types import CellType, CodeType, FunctionType
from typing import Any

from chop.paths.moved import EARLIER

MAX_VERBATIM = 200
"""Maximum length of an identity stored verbatim; longer ones are hashed."""


def get_identity(value: Any) -> str:
    """Returns a text that identifies a value.

    Numbers and texts are compared with their types, dataclasses by their fields, and other objects
    by their pickle reduction. Classes and functions are compared by name. Lambdas, local functions
    and functions of the main program are compared by their code and closure, without the global
    variables that they read. The order of mappings is ignored.
    """
    text = json.dumps(_Walk().plain(value), ensure_ascii=True)
    return text if len(text) <= MAX_VERBATIM else sha256(text.encode()).hexdigest()[:16]


class _Walk:
    """Recursive walk over a value. An object inside itself is identified by its depth."""

    def __init__(self) -> None:
        self.depths: dict[int, int] = {}

    def plain(self, value: Any) -> Any:
        """Returns a JSON form of the value."""
        if value is None or isinstance(value, bool | str):
            return value
        # Exact types only: a subclass, such as an enumeration of integers, is another value.
        if type(value) in (int, float, complex, bytes):
            return [type(value).__name__, repr(value)]
        if id(value) in self.depths:
            return ["within", self.depths[id(value)]]
        self.depths[id(value)] = len(self.depths)
        parts = [_name(type(value)), *self._parts(value)]
        del self.depths[id(value)]
        return parts

    def _parts(self, value: Any) -> Iterator[Any]:
        import torch
        from torch import Tensor

        if isinstance(value, type | Enum):
            yield _name(value) if isinstance(value, type) else value.name
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, Mapping):
            yield sorted(([self.plain(k), self.plain(x)] for k, x in value.items()), key=json.dumps)
        elif isinstance(value, list | tuple):
            yield [self.plain(x) for x in value]
        elif isinstance(value, Set):
            yield sorted(map(self.plain, value), key=json.dumps)
        elif isinstance(value, Tensor) and value.is_meta:
            yield from (str(value.dtype), list(value.shape))
        elif isinstance(value, Tensor):
            # As bytes, because NumPy lacks bfloat16 and the float8 types.
            numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            yield from (str(value.dtype), list(value.shape), sha256(numbers.data).hexdigest())
        elif isinstance(value, CodeType):
            yield from (value.co_code.hex(), list(value.co_names), self.plain(value.co_consts))
        elif dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value) if field.compare]
            yield [[name, self.plain(getattr(value, name))] for name in fields]
        else:
            yield from self._reduced(value)

    def _function(self, value: FunctionType) -> Iterator[Any]:
        if "<" not in value.__qualname__ and value.__module__ != "__main__":
            yield _name(value)
            return
        cells = [_content(cell) for cell in value.__closure__ or ()]
        for part in (value.__code__, value.__defaults__, value.__kwdefaults__, cells):
            yield self.plain(part)

    def _reduced(self, value: Any) -> Iterator[Any]:
        """Yields the pickle reduction of an object, or only its class if it cannot be pickled."""
        # Like pickle: a registered reducer comes before the method of the object.
        own = copyreg.dispatch_table.get(type(value))
        try:
            reduced = value.__reduce_ex__(4) if own is None else own(value)
        except Exception:  # arbitrary code: `__reduce_ex__` of the object
            return
        if isinstance(reduced, str):
            yield [getattr(value, "__module__", ""), reduced]
            return
        function, arguments, state, *items = (*reduced, None, None, None)[:5]
        yield [self.plain(function), self.plain(arguments)]
        if isinstance(state, dict):
            state = {k: x for k, x in state.items() if not _is_cache(type(value), k)}
        yield self.plain(state)
        for entries in items:
            yield None if entries is None else self.plain(list(entries))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_cache(cls: type, name: object) -> bool:
    """Returns whether an attribute is a cache filled on first access, not part of a value."""
    value = getattr(cls, name, None) if isinstance(name, str) else None
    return isinstance(value, cached_property)


def _name(value: Any) -> str:
    """Returns the dotted name; for a moved module the earlier path, which storages contain."""
    return f"{EARLIER.get(value.__module__, value.__module__)}.{value.__qualname__}"
