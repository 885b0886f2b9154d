"""Recipe: weight formats of modules selected by path patterns.

A pattern is the path of a module or its last part, such as "layers.0.mlp" or "down_proj". It
selects that module and all modules inside it. A complete path takes precedence over last parts.
A pattern that starts with "re:" is a regular expression, matched from the beginning of a path as
in compressed-tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from chop.errors import ConfigError, describe, did_you_mean
from chop.formats.format_strings import parse_format_string, with_width

PREFIX = "re:"
WORDS = re.compile(r"\w+(?:\\?\.\w+)*")
"""Parts of a path in a regular expression."""
T = TypeVar("T")


@dataclass(frozen=True)
class Recipe:
    """Formats of layers that differ from the default, and modules to skip.

    Attributes:
        overrides: format string of the weights by pattern; if several patterns match a layer, the
            first one applies.
        skip: patterns of modules that stay unchanged, regardless of `overrides`.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()

    @classmethod
    def read(cls, overrides: Any, skip: Any, where: str) -> Recipe:
        """Parses plain data: a mapping, and one or several texts.

        Args:
            overrides: mapping from patterns to format strings, or None.
            skip: one or several patterns, or None.
            where: owner of the settings, for messages.
        Raises:
            ConfigError: if a type is wrong, or a pattern or format is malformed.

        Example:
            >>> Recipe.read({"re:.*down_proj": "mxint8"}, "lm_head", "")
            Recipe(overrides={'re:.*down_proj': 'mxint:width=8'}, skip=('lm_head',))
        """
        overrides = {} if overrides is None else overrides
        if not isinstance(overrides, Mapping) or not _are_texts([*overrides, *overrides.values()]):
            raise ConfigError(
                f"{where}.overrides: expected formats by pattern, such as "
                f"{{'re:.*down_proj': 'mxint8'}}, got {describe(overrides)}."
            )
        names = names_of_setting(skip, f"{where}.skip")
        for pattern in (*overrides, *names):
            check_pattern(pattern, where)
        return cls({key: coded(text, where) for key, text in overrides.items()}, names)

    def plain(self) -> dict[str, Any]:
        """Returns plain data without empty entries."""
        own = {"overrides": dict(self.overrides), "skip": list(self.skip)}
        return {name: value for name, value in own.items() if value}

    def skipped_paths(
        self, paths: Collection[str], missing: Callable[[str], Exception]
    ) -> set[str]:
        """Returns the paths that `skip` selects."""
        selected: set[str] = set()
        for pattern in self.skip:
            named = match_paths(pattern, paths)
            if not named:
                raise missing(pattern)
            selected |= named
        return selected

    def choose(self, layers: Mapping[T, Sequence[str]], where: str) -> dict[T, str]:
        """Returns the formats of the layers that `overrides` selects.

        Raises:
            ConfigError: if a pattern selects no layer.
        """
        paths = {path for own in layers.values() for path in own}
        chosen: dict[T, str] = {}
        for pattern, text in self.overrides.items():
            named = match_paths(pattern, paths)
            if not named:
                raise ConfigError(
                    f"{where}.overrides: '{pattern}' matches no quantized layer: "
                    f"{nearest(pattern, paths)}"
                )
            for layer, own in layers.items():
                if named.intersection(own):
                    chosen.setdefault(layer, text)
        return chosen


def match_paths(pattern: str, paths: Iterable[str]) -> set[str]:
    """Returns the paths that a pattern selects: matching modules, and modules inside them.

    >>> sorted(match_paths("mlp", ["0.mlp.up", "0.mlp.down", "0.norm"]))
    ['0.mlp.down', '0.mlp.up']
    >>> sorted(match_paths("re:.*p$", ["0.mlp.up", "0.mlp.down", "0.attn.o"]))
    ['0.mlp.down', '0.mlp.up']
    """
    holders = {path: _holders(path) for path in paths}
    every = {name for own in holders.values() for name in own}
    if pattern.startswith(PREFIX):
        expression = re.compile(pattern.removeprefix(PREFIX))
        named = {name for name in every if expression.match(name)}
    else:
        named = every & {pattern} or {name for name in every if name.endswith(f".{pattern}")}
    return {path for path, own in holders.items() if not named.isdisjoint(own)}


def nearest(pattern: str, paths: Iterable[str]) -> str:
    """Returns a sentence that suggests the nearest path, or last part of a path, to a pattern."""
    every = {name for path in paths if path for name in _holders(path)}
    if not pattern.startswith(PREFIX):
        ends = every | {name.rpartition(".")[2] for name in every}
        return did_you_mean(pattern, ends if pattern not in ends else every)
    words = WORDS.findall(pattern.removeprefix(PREFIX))
    word = max((x.replace("\\", "") for x in words), key=len, default="")
    return did_you_mean(word, {name.rpartition(".")[2] for name in every})


def coded(text: str, where: str) -> str:
    """Returns a format string with its fields named, for weights that are stored as codes.

    Raises:
        ConfigError: if the text is malformed, or the format has no codes.
    """
    text = with_width(text)
    number_format = parse_format_string(text)
    if number_format.is_identity or not number_format.is_deterministic:
        raise ConfigError(
            f"{where}: format '{text}' cannot store weights, because it "
            f"{'does not quantize' if number_format.is_identity else 'rounds at random'}. Use a "
            "format such as 'mxint8'."
        )
    return text


@lru_cache(maxsize=2**14)
def _holders(path: str) -> tuple[str, ...]:
    """Returns a path followed by the paths of its parent modules."""
    steps = path.split(".")
    return tuple(".".join(steps[: n + 1]) for n in range(len(steps)))


def _are_texts(given: Iterable[object]) -> bool:
    return all(isinstance(x, str) for x in given)


def names_of_setting(given: object, where: str) -> tuple[str, ...]:
    """Returns the texts of a setting that accepts one, several or None.

    Raises:
        ConfigError: if the setting is something else.
    """
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    if isinstance(given, Sequence | set | frozenset) and _are_texts(given):
        return tuple(given)
    raise ConfigError(f"{where}: expected a name or a list of names, got {describe(given)}.")


def check_pattern(pattern: str, where: str) -> None:
    """Raises ConfigError for an empty pattern or a malformed regular expression."""
    expression = pattern.removeprefix(PREFIX)
    if not expression:
        raise ConfigError(f"{where}: expected a path, or 're:' and an expression, got '{pattern}'.")
    try:
        re.compile(expression if pattern.startswith(PREFIX) else "")
    except re.error as error:
        raise ConfigError(
            f"{where}: '{expression}' is not a regular expression: {error}."
        ) from None
