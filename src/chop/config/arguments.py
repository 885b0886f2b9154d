"""Arguments of functions, checked against their annotations."""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from chop.config.conversion import convert
from chop.config.texts import LISTS
from chop.errors import ConfigError, check_known

P = ParamSpec("P")
T = TypeVar("T")
CHECKED_CLASSES = ("chop.", "torch")
"""Modules of the classes that `with_checked_arguments` checks."""
ROWS = {"data", "dataset"}
"""Names of arguments that take inputs and labels."""
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""Kinds of parameters whose arguments may be given without their names."""


def with_checked_names(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that checks the number and the names of the arguments of a function.

    Raises:
        ConfigError: in a call, if an argument is unknown, missing or given twice, or there are too
            many.
    """
    check_names = _names_check(function)

    @functools.wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        check_names(len(args), named)
        return function(*args, **named)

    return checked


def with_checked_init(cls: type[T]) -> type[T]:
    """Class decorator that checks how a dataclass is created, see `with_checked_names`."""
    setattr(cls, "__init__", with_checked_names(cls.__init__))  # noqa: B010 (mypy)
    return cls


def with_checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that checks the arguments of a function against their annotations.

    Models and classes of other libraries are not checked. A call costs about 2 us more.

    Raises:
        ConfigError: in a call, if an argument does not fit, or see `with_checked_names`.
    """
    check_names, hints = _names_check(function), cache(partial(_hints, function))
    placed = _placed(function)

    @functools.wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        known = hints()
        check_names(len(args), named)

        def check(name: str, value: Any) -> Any:
            if name not in known or type(value) in known[name].exact:
                return value
            return convert(value, known[name].hint, name)

        first = [check(name, value) for name, value in zip(placed, args, strict=False)]
        rest = {name: check(name, value) for name, value in named.items()}
        return function(*first, *args[len(placed) :], **rest)  # type: ignore[arg-type]

    return checked


def _placed(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the parameters whose arguments may be given without their names."""
    parameters = inspect.signature(function).parameters.items()
    return [name for name, each in parameters if each.kind in BY_PLACE]


def _names_check(function: Callable[..., Any]) -> Callable[[int, Mapping[str, Any]], None]:
    """Returns a function that checks a count of unnamed arguments, and the named ones."""
    parameters, placed = inspect.signature(function).parameters, _placed(function)
    kinds = {each.kind for each in parameters.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    most = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(placed)
    required = {name for name in placed if parameters[name].default is inspect.Parameter.empty}
    # A class is called by its own name, and a method without `self`.
    who = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    owned = int(placed[:1] in (["self"], ["cls"]))
    names = list(parameters)[owned:]

    def check(count: int, named: Mapping[str, Any]) -> None:
        for name in () if takes_any else named:
            check_known(name, names, f"{who}: unknown argument")
        if count > most:
            pair = " Rows are one argument: (X, y) for inputs and labels."
            pair *= bool(ROWS & {*placed})
            raise ConfigError(
                f"{who}: expected at most {most - owned} arguments without names "
                f"({', '.join(placed[owned:])}), got {count - owned}.{pair}"
            )
        for name in placed[:count]:
            if name in named:
                raise ConfigError(f"{who}: '{name}' is given twice, with and without its name.")
        for name in placed[count:]:
            if name in required and name not in named:
                raise ConfigError(f"{who}: expected the argument '{name}', which has no default.")

    return check


class _Anything(type):
    """Metaclass of a class, also generic, of which every value is an instance."""

    def __getitem__(cls, item: Any) -> type:
        return cls

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class _Other(metaclass=_Anything):
    """Class that only type checkers import."""


class _OtherNames(dict[str, Any]):
    """Names of annotations that only type checkers import, each as `_Other`."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__()
        self.known = known

    def __missing__(self, name: str) -> Any:
        if name in self.known or hasattr(builtins, name):
            raise KeyError(name)  # Python looks there next
        return _Other


class _Checked(NamedTuple):
    """Annotation, and the classes whose instances `convert` returns unchanged.

    Looking at the class is ten times as fast as `convert`.
    """

    hint: Any
    exact: frozenset[type]


def _hints(function: Callable[..., Any]) -> dict[str, _Checked]:
    """Returns the annotations of a function that `convert` can check, by argument."""
    hints: dict[str, _Checked] = {}
    for name, each in inspect.signature(function).parameters.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        holder = types.SimpleNamespace(__annotations__={name: each.annotation})
        known = inspect.unwrap(function).__globals__
        hint = typing.get_type_hints(holder, known, _OtherNames(known), include_extras=True)[name]
        if _is_checkable(hint):
            hints[name] = _Checked(hint, _find_exact(hint))
    return hints


def _find_exact(hint: Any) -> frozenset[type]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    texts = {Path, str} if Path in members else set()  # `convert` checks the names of files
    return frozenset({each for each in members if isinstance(each, type)} - texts)


def _is_checkable(hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _is_checkable(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return all(map(_is_checkable, arguments))
    if origin is not None:
        return origin in (Literal, Callable, type, tuple, list, dict, Mapping, *LISTS)
    if hint in (bool, int, float, str, Path, type(None)):
        return True
    # Functions that take models describe in other words what a model is.
    is_class = isinstance(hint, type) and Protocol not in hint.__bases__
    return is_class and hint.__module__.startswith(CHECKED_CLASSES) and hint.__name__ != "Module"
