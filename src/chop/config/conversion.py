"""Conversion of settings to the types of dataclass fields and annotations."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from chop.config.ranges import Range
from chop.config.texts import LISTS, check_text, describe_hint, describe_typed
from chop.errors import ConfigError, check_distinct, describe, did_you_mean

T = TypeVar("T")
EXACT, NUMBERS = (str, int, bool), (int, float, bool)
"""Types whose instances need no conversion, and types of numbers."""
LARGEST = 2**1023
"""Largest integer that a float can represent."""
COMMAND = "chop "
"""Prefix of command names."""
MORE: Mapping[str, str] = {"panel": "More options"}
"""Metadata of a setting that few people need; `--help` lists it last."""


def parse(cls: type[T], settings: Mapping[str, Any] | T | None, where: str = "") -> T:
    """Builds the frozen dataclass `cls` from a mapping.

    Args:
        cls: a dataclass; nested dataclasses, `Literal`, unions, tuples, lists and dicts of them
            may be field types, and `Annotated` with a `Range`.
        settings: keys are field names. `None` means all defaults; an instance is returned as is.
        where: what the settings belong to, for the error messages.

    Raises:
        ConfigError: if a key is unknown or missing, or a value has the wrong type.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Lora:
        ...     rank: int = 8
        >>> parse(Lora, {"rank": 4})
        Lora(rank=4)
        >>> parse(Lora, {"rnak": 4})
        Traceback (most recent call last):
        chop.errors.ConfigError: Lora: unknown key 'rnak': did you mean 'rank'?
    """
    if isinstance(settings, cls):
        return settings
    where = where or cls.__name__
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"{where}: expected a mapping, got {describe_typed(settings)}.")
    settings = dict(settings or {})
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    check_keys(cls, settings, where)
    missing = [name for name, f in fields.items() if name not in settings and _required(f)]
    if missing:
        raise ConfigError(f"{where}: missing key '{missing[0]}'.")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    return cls(
        **{key: _value(value, hints[key], fields[key], where) for key, value in settings.items()}
    )


def check_keys(cls: type, settings: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError if a key of the settings is no field of a dataclass.

    Args:
        cls: the dataclass.
        settings: settings by key.
        where: what the settings belong to, for the error messages.
    """
    fields = [field.name for field in dataclasses.fields(cls) if field.init]
    for key, value in settings.items():
        if key not in fields and isinstance(value, Mapping) and value.keys() & {*fields}:
            raise ConfigError(
                f"{where}: unknown key '{key}': settings are at the top level, without [{key}]."
            )
        if not fields:
            raise ConfigError(f"{where}: takes no settings, got '{key}'.")
        if key not in fields:
            raise ConfigError(f"{where}: unknown key '{key}': {did_you_mean(key, fields)}")


def _value(value: Any, hint: Any, field: dataclasses.Field[Any], where: str) -> Any:
    """Converts a setting; in errors, the `hint` of the field ends the sentence.

    For a command, `where` is its name and settings are named as options.
    """
    is_command = where.startswith(COMMAND)
    named = f"{where} --{field.name.replace('_', '-')}" if is_command else f"{where}.{field.name}"
    try:
        return convert(value, hint, named)
    except ConfigError as error:
        advice = field.metadata.get("hint")
        if advice is None:
            raise
        raise ConfigError(f"{error} {advice}") from None


def convert(value: Any, hint: Any, where: str) -> Any:
    """Checks `value` against a type hint; sequences become what the hint says.

    Raises:
        ConfigError: if the value does not fit. A float is never silently an int, a bool never a
            number, a number never out of its `Range`.
    """
    if hint in EXACT and type(value) is hint:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in NUMBERS or origin is Literal:
        value = _to_python(value)
    if origin is Annotated:
        value = convert(value, arguments[0], where)
        for allowed in arguments[1:]:
            if isinstance(allowed, Range):
                allowed.check(value, where)
        return value
    if Path in (hint, *arguments):
        check_text(value, where)
    if origin is Literal:
        for choice in arguments:
            if value is choice or (_is_of_kind(value, choice) and value == choice):
                return choice
        raise ConfigError(f"{where}: got {describe(value)}: {did_you_mean(value, arguments)}")
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, hint, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        has_defaults = not any(map(_required, dataclasses.fields(hint)))
        if not isinstance(value, Mapping | hint) and not (value is None and has_defaults):
            raise ConfigError(
                f"{where}: expected a {hint.__name__}, or a table of its fields, got "
                f"{describe_typed(value)}."
            )
        return parse(hint, value, where)
    if origin is tuple and ... not in arguments and _is_listed(value, Sequence):
        return _convert_fixed(value, arguments, where)
    if origin in (tuple, list) and _is_listed(value, Sequence):
        return origin(convert(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {key: convert(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if origin in LISTS and _is_listed(value, origin):
        for i, item in enumerate(value if isinstance(value, Sequence) else ()):
            convert(item, arguments[0], f"{where}[{i}]")
        return value
    if _fits(value, hint, origin) and origin not in LISTS:
        return _plain(value, hint)
    raise ConfigError(_describe_misfit(value, hint, where))


def _describe_misfit(value: Any, hint: Any, where: str) -> str:
    """Returns the message about a value of another type.

    Advises on a name in place of a list, and on a value in place of a table that starts with it.
    """
    advice = ""
    if isinstance(value, str) and value:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        with contextlib.suppress(ConfigError):
            convert(parts, hint, where)
            advice = f"; pass {parts}"
    tables = [member for member in typing.get_args(hint) if dataclasses.is_dataclass(member)]
    if len(tables) == 1:
        first = dataclasses.fields(tables[0])[0].name
        with contextlib.suppress(ConfigError):
            convert({first: value}, tables[0], where)
            advice = f"; write {{'{first}': {describe(value)}}}"
    return f"{where}: expected {describe_hint(hint)}, got {describe_typed(value)}{advice}."


def _is_listed(value: Any, origin: Any) -> bool:
    """Returns true if a value is of a kind of lists, and not one text."""
    return isinstance(value, origin) and not isinstance(value, str | bytes)


def _convert_fixed(value: Sequence[Any], members: Sequence[Any], where: str) -> tuple[Any, ...]:
    """Converts a tuple whose members have different types."""
    if len(value) != len(members):
        raise ConfigError(f"{where}: expected {len(members)} values, got {len(value)}.")
    pairs = enumerate(zip(value, members, strict=True))
    return tuple(convert(item, member, f"{where}[{i}]") for i, (item, member) in pairs)


def check_fields(instance: Any, where: str) -> None:
    """Checks types and ranges of the fields of an instance that was not made by `parse`.

    It converts values as `parse` does: NumPy numbers to Python numbers, lists to tuples and
    texts to paths, as the field says.

    Raises:
        ConfigError: if a value has the wrong type or is out of range, or a name is given twice.
    """
    hints = _type_hints(type(instance))  # type: ignore[arg-type]
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        converted = _value(value, hints[field.name], field, where)
        if isinstance(converted, tuple) and all(isinstance(each, str) for each in converted):
            check_distinct(converted, field.name)
        if converted is not value:
            object.__setattr__(instance, field.name, converted)


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert_union(value: Any, members: tuple[Any, ...], hint: Any, where: str) -> Any:
    # What is wrong inside a mapping is said better by its own values than by the union.
    mappings = [member for member in members if typing.get_origin(member) in (dict, Mapping)]
    tables = [member for member in members if dataclasses.is_dataclass(member)]
    if len(tables) == 1 and not mappings and isinstance(value, Mapping):
        return convert(value, tables[0], where)
    if len(mappings) == 1 and isinstance(value, Mapping):
        return convert(value, mappings[0], where)
    # Messages of members that do not fit would describe the value, which may be large.
    plain = [member for member in members if isinstance(member, type) or member is Any]
    for member in plain:
        if not dataclasses.is_dataclass(member) and _fits(value, member, None):
            return convert(value, member, where)
    for member in members:
        try:
            return convert(value, member, where)
        except ConfigError:
            continue
    raise ConfigError(_describe_misfit(value, hint, where))


def _to_python(value: Any) -> Any:
    """Converts NumPy numbers, and arrays and tensors without dimensions, to Python numbers."""
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    with contextlib.suppress(RuntimeError, ValueError):  # a tensor on the meta device
        return value.item()
    return value


def _is_of_kind(value: Any, choice: Any) -> bool:
    """Returns True for values of the class of a choice, of which a bool is no int."""
    return isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool)


def _fits(value: Any, hint: Any, origin: Any) -> bool:
    if hint is Any:
        return True
    if hint in NUMBERS:
        value = _to_python(value)
    if hint is float or hint is int:
        kind = numbers.Real if hint is float else numbers.Integral
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and (hint is int or not isinstance(value, int) or abs(value) < LARGEST)
    if hint is Path:
        return isinstance(value, str | os.PathLike)
    if hint is None:
        return value is None
    if origin is type:
        return isinstance(value, type) and issubclass(value, typing.get_args(hint)[0])
    return isinstance(value, origin or hint)


def _plain(value: Any, hint: Any) -> Any:
    """Converts to the Python numbers that formats compare and JSON can represent, and to paths."""
    if hint is Path:
        return Path(value)
    if hint is int and not isinstance(value, int):
        return int(value)
    return float(value) if hint is float and not isinstance(value, int | float) else value
