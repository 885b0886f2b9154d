"""Configuration: user dicts and TOML files become frozen dataclasses, once.

Nothing else in `chop` reads string keys. `parse` checks every key and every type and says which
key was meant; after it, settings are attributes.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import inspect
import logging
import numbers
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from chop.base.files.documents import SURROGATE, read_toml
from chop.errors import ConfigError, check_known, describe, did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
LARGEST = 2**1023
"""Largest integer that a float can represent."""
LONGEST = 200
"""Maximum length of a value in a message, in characters."""
COMMAND = "chop "
"""Prefix of command names."""
NA = "NA"
"""Value that stands for None in TOML files of MASE."""
MORE: Mapping[str, str] = {"panel": "More options"}
"""Metadata of a setting that few people need; `--help` lists it last."""
CHECKED_CLASSES = ("chop.", "torch")
"""Modules of the classes that `with_checked_arguments` checks."""
LISTS = (Sequence, Iterable, Collection)
"""Annotations of lists of any type."""
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a numeric setting: `Annotated[int, Range(1, 100)]`.

    `convert` checks it, as do `parse` and `check_fields`, and `--help-all` shows it. None and
    texts pass. Every number of a list or mapping is checked. NaN is out of every range.

    Attributes:
        least: smallest number. Default: no bound.
        most: largest number. Default: no bound.
        unit: unit of the numbers in messages, such as bits.
        above: exclusive lower bound, in place of `least`.
        below: exclusive upper bound, in place of `most`.

    >>> str(Range(1, 32, "bits")), str(Range(1)), str(Range(0, below=1)), str(Range(above=0))
    ('1 to 32 bits', '1 or more', '0 to below 1', 'more than 0')
    """

    least: float | None = None
    most: float | None = None
    unit: str = ""
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: Any) -> bool:
        return bool(
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        last = self.most if self.below is None else f"below {self.below}"
        if last is None:
            text = f"{self.least} or more" if self.above is None else f"more than {self.above}"
        else:
            text = f"{self.least if self.above is None else f'above {self.above}'} to {last}"
        return f"{text} {self.unit}".rstrip()

    def check(self, value: Any, where: str) -> None:
        """Raises ConfigError if `value`, or a number in it, is out of range."""
        if isinstance(value, Mapping):
            for key, member in value.items():
                self.check(member, f"{where}['{key}']")
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, numbers.Real) and number not in self:
                raise ConfigError(f"{where}: got {number}, expected {self}.")


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
        raise ConfigError(f"{where}: expected a mapping, got {_describe(settings)}.")
    settings = dict(settings or {})
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key, value in settings.items():
        if key not in fields and isinstance(value, Mapping) and value.keys() & fields.keys():
            raise ConfigError(
                f"{where}: unknown key '{key}': settings are at the top level, without [{key}]."
            )
        if not fields:
            raise ConfigError(f"{where}: takes no settings, got '{key}'.")
        if key not in fields:
            raise ConfigError(f"{where}: unknown key '{key}': {did_you_mean(key, fields)}")
    missing = [name for name, f in fields.items() if name not in settings and _required(f)]
    if missing:
        raise ConfigError(f"{where}: missing key '{missing[0]}'.")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    return cls(
        **{key: _value(value, hints[key], fields[key], where) for key, value in settings.items()}
    )


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
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        value = convert(value, arguments[0], where)
        for allowed in arguments[1:]:
            if isinstance(allowed, Range):
                allowed.check(value, where)
        return value
    if Path in (hint, *arguments):
        check_text(value, where)
    if origin is Literal:
        if any(
            value is choice or (type(value) is type(choice) and value == choice)
            for choice in arguments
        ):
            return value
        raise ConfigError(f"{where}: got {describe(value)}: {did_you_mean(value, arguments)}")
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, hint, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        has_defaults = not any(map(_required, dataclasses.fields(hint)))
        if not isinstance(value, Mapping | hint) and not (value is None and has_defaults):
            raise ConfigError(
                f"{where}: expected a {hint.__name__}, or a table of its fields, got "
                f"{_describe(value)}."
            )
        return parse(hint, value, where)
    if origin is tuple and ... not in arguments and isinstance(value, list | tuple):
        return _convert_fixed(value, arguments, where)
    if origin in (tuple, list) and isinstance(value, list | tuple):
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
    """Returns the message about a value of another type; a name in place of a list has advice."""
    advice = ""
    if isinstance(value, str) and value:
        with contextlib.suppress(ConfigError):
            convert([value], hint, where)
            advice = f"; pass [{value!r}]"
    return f"{where}: expected {_format(hint)}, got {_describe(value)}{advice}."


def _is_listed(value: Any, origin: Any) -> bool:
    """Returns true if a value is of a kind of lists, and not one text."""
    return isinstance(value, origin) and not isinstance(value, str | bytes)


def _convert_fixed(value: Sequence[Any], members: Sequence[Any], where: str) -> tuple[Any, ...]:
    """Converts a tuple whose members have different types."""
    if len(value) != len(members):
        raise ConfigError(f"{where}: expected {len(members)} values, got {len(value)}.")
    pairs = enumerate(zip(value, members, strict=True))
    return tuple(convert(item, member, f"{where}[{i}]") for i, (item, member) in pairs)


def check_text(value: Any, where: str) -> None:
    """Raises ConfigError if a name is empty or has characters that no file can store."""
    if isinstance(value, str) and not value:
        raise ConfigError(f"{where}: got an empty text; is a variable not set?")
    if isinstance(value, str | Path) and "\0" in str(value):
        raise ConfigError(f"{where}: got {str(value)!r}, expected a text without null bytes.")
    if isinstance(value, str | Path) and str(value).startswith("~"):
        try:
            Path(value).expanduser()
        except RuntimeError:
            user = Path(value).parts[0]
            raise ConfigError(f"{where}: got '{value}': {user} is no home folder.") from None
    if isinstance(value, str | Path) and SURROGATE.search(str(value)):
        # A byte of a path that is no UTF-8: neither pages nor checkpoints can have its name.
        raise ConfigError(
            f"{where}: got {str(value)!r}, expected UTF-8: rename the file or folder."
        )


def load_toml(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: if the file is missing or is not TOML; the message has the line.
    """
    try:
        return read_toml(path, "settings")
    except FileNotFoundError:
        raise ConfigError(f"config file '{path}' does not exist.") from None
    except OSError as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error.strerror}.") from None
    except ConfigError as error:
        raise ConfigError(f"config file '{path}' is not valid TOML: {error}.") from None


def without_na(settings: Any) -> Any:
    """Returns a deep copy of the settings with None in place of the "NA" of MASE.

    >>> without_na({"mean": "NA", "block_size": [1, 16]})
    {'mean': None, 'block_size': [1, 16]}
    """
    if type(settings) is dict:
        return {key: without_na(value) for key, value in settings.items()}
    if type(settings) in (list, tuple):
        return type(settings)(without_na(value) for value in settings)
    return None if isinstance(settings, str) and settings == NA else settings


def load_config(config_path: str | Path) -> dict[str, Any]:
    """Reads a TOML file, with None in place of "NA". A pass takes one of its tables.

    Raises:
        ConfigError: if the file is missing or is not TOML; the message has the line.

    Example::

        mg, _ = quantize_transform_pass(mg, load_config("fixed.toml")["passes"]["quantize"])
    """
    settings: dict[str, Any] = without_na(load_toml(config_path))
    return settings


def ignoring(settings: Mapping[str, Any], keys: Collection[str], where: str) -> dict[str, Any]:
    """Returns the settings without `keys`; the debug log lists the ignored ones."""
    ignored = [key for key in settings if key in keys]
    if ignored:
        log.debug("%s: %s: settings of MASE without an effect in chop.", where, ", ".join(ignored))
    return {key: value for key, value in settings.items() if key not in keys}


def renamed(settings: Mapping[str, Any], aliases: Mapping[str, str], where: str) -> dict[str, Any]:
    """Returns the settings under the names of `chop`.

    Args:
        settings: settings under the names of `chop` or under aliases.
        aliases: name of `chop` by alias.
        where: subject of the error message.

    Raises:
        ConfigError: if a setting is given under two names.

    >>> renamed({"r": 4}, {"r": "rank"}, "lora")
    {'rank': 4}
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        name = aliases.get(key, key)
        if name in result:
            raise ConfigError(f"{where}: '{name}' is given twice, once as '{key}'; drop one.")
        result[name] = value
    return result


def check_fields(instance: Any, where: str) -> None:
    """Checks types and ranges of the fields of an instance that was not made by `parse`.

    It converts values as `parse` does: NumPy numbers to Python numbers, lists to tuples and
    texts to paths, as the field says.

    Raises:
        ConfigError: if a value has the wrong type or is out of range.
    """
    hints = _type_hints(type(instance))  # type: ignore[arg-type]
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        converted = _value(value, hints[field.name], field, where)
        if converted is not value:
            object.__setattr__(instance, field.name, converted)


def with_checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that checks the arguments of a function against their annotations.

    Models and classes of other libraries are not checked, nor is a call that Python rejects.

    Raises:
        ConfigError: in a call, if an argument does not fit, or has an unknown name.
    """
    signature, hints = inspect.signature(function), cache(lambda: _checked_hints(function))

    @functools.wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        names = list(signature.parameters)
        if all(each.kind is not each.VAR_KEYWORD for each in signature.parameters.values()):
            for name in named:
                check_known(name, names, f"{function.__name__}: unknown argument")
        with contextlib.suppress(TypeError):  # Python describes missing arguments
            bound = signature.bind(*args, **named)
            for name, hint in hints().items():
                if name in bound.arguments:
                    bound.arguments[name] = convert(bound.arguments[name], hint, name)
            args, named = bound.args, bound.kwargs  # type: ignore[assignment]
        return function(*args, **named)

    return checked


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


def _checked_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function that `convert` can check, by argument."""
    hints: dict[str, Any] = {}
    for name, each in inspect.signature(function).parameters.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        holder = types.SimpleNamespace(__annotations__={name: each.annotation})
        known = inspect.unwrap(function).__globals__
        hint = typing.get_type_hints(holder, known, _OtherNames(known), include_extras=True)[name]
        hints |= {name: hint} if _is_checkable(hint) else {}
    return hints


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
    is_class = isinstance(hint, type) and not getattr(hint, "_is_protocol", False)
    return is_class and hint.__module__.startswith(CHECKED_CLASSES) and hint.__name__ != "Module"


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
    for member in members:
        try:
            return convert(value, member, where)
        except ConfigError:
            continue
    raise ConfigError(_describe_misfit(value, hint, where))


def _fits(value: Any, hint: Any, origin: Any) -> bool:
    if hint is Any:
        return True
    if hint is float or hint is int:
        kind = numbers.Real if hint is float else numbers.Integral
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and (hint is int or not isinstance(value, int) or abs(value) < LARGEST)
    if hint is Path:
        return isinstance(value, str | Path)
    if hint is None:
        return value is None
    if origin is type:
        return isinstance(value, type) and issubclass(value, typing.get_args(hint)[0])
    return isinstance(value, origin or hint)


def _plain(value: Any, hint: Any) -> Any:
    """Converts NumPy numbers to Python numbers, which formats compare and JSON can represent."""
    if hint is Path:
        return Path(value)
    if hint is int and not isinstance(value, int):
        return int(value)
    return float(value) if hint is float and not isinstance(value, int | float) else value


def _describe(value: Any) -> str:
    """Describes a value in one line, shortened if it is long."""
    if value is None:
        return "nothing (None)"
    return describe(value, LONGEST, is_typed=True)


def _format(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _format(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_format(member) for member in arguments)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if hint in (None, type(None)):
        return "None"
    if origin is Callable:
        return "a function"
    if origin is type:
        return f"a class of {_format(arguments[0])}"
    if origin in (tuple, list, *LISTS):
        return "a list" if arguments[0] is Any else f"a list of {_format(arguments[0])}"
    if origin in (dict, Mapping):
        each = "" if arguments[1] is Any else f", each {_format(arguments[1])}"
        return f"a table of names and values{each}"
    return getattr(hint, "__name__", str(hint))
