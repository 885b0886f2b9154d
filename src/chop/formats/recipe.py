"""Recipe: patterns of module paths, with the formats of the weights that they mean.

A pattern is a path of a module, or the end of one, "layers.0.mlp" or "down_proj": it means this
module and all in it. A path that is there whole precedes those that only end so. Behind "re:"
stands a regular expression, which matches from the beginning of a path, as in compressed-tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from chop.errors import ConfigError, did_you_mean
from chop.formats.format_strings import parse_format_string, with_width

PREFIX = "re:"
WORDS = re.compile(r"\w+(?:\\?\.\w+)*")
"""What a regular expression has of a path."""
T = TypeVar("T")


@dataclass(frozen=True)
class Recipe:
    """Formats of layers that differ from those of all, and modules that are left.

    Attributes:
        overrides: by pattern, the format of weights as people type it; of several patterns that
            mean a layer the first holds.
        skip: patterns of modules that are left as they are, whatever `overrides` say.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()

    @classmethod
    def read(cls, overrides: Any, skip: Any, where: str) -> Recipe:
        """From plain data: a mapping, and one or several texts.

        Args:
            overrides: None is none.
            skip: None is none.
            where: what they are settings of, for messages.
        Raises:
            ConfigError: they are something else, or a pattern or a format is malformed.

        Example:
            >>> Recipe.read({"re:.*down_proj": "mxint8"}, "lm_head", "")
            Recipe(overrides={'re:.*down_proj': 'mxint:width=8'}, skip=('lm_head',))
        """
        overrides = {} if overrides is None else overrides
        if not isinstance(overrides, Mapping) or not _are_texts([*overrides, *overrides.values()]):
            raise ConfigError(
                f"{where}.overrides: expected a format by pattern, as "
                f"{{'re:.*down_proj': 'mxint8'}}, got {overrides!r}."
            )
        names = names_of_setting(skip, f"{where}.skip")
        for pattern in (*overrides, *names):
            check_pattern(pattern, where)
        return cls({key: coded(text, where) for key, text in overrides.items()}, names)

    def plain(self) -> dict[str, Any]:
        """Plain data, without what is empty."""
        own = {"overrides": dict(self.overrides), "skip": list(self.skip)}
        return {name: value for name, value in own.items() if value}

    def left(self, paths: Collection[str], missing: Callable[[str], Exception]) -> set[str]:
        """Those of the paths that `skip` means."""
        found: set[str] = set()
        for pattern in self.skip:
            named = meant(pattern, paths)
            if not named:
                raise missing(pattern)
            found |= named
        return found

    def choose(self, layers: Mapping[T, Sequence[str]], where: str) -> dict[T, str]:
        """The formats of the layers that `overrides` mean.

        Raises:
            ConfigError: a pattern means none of the layers.
        """
        paths = {path for own in layers.values() for path in own}
        chosen: dict[T, str] = {}
        for pattern, text in self.overrides.items():
            named = meant(pattern, paths)
            if not named:
                raise ConfigError(
                    f"{where}.overrides: no layer that is quantized matches '{pattern}': "
                    f"{nearest(pattern, paths)}"
                )
            for layer, own in layers.items():
                if named.intersection(own):
                    chosen.setdefault(layer, text)
        return chosen


def meant(pattern: str, paths: Iterable[str]) -> set[str]:
    """Those of the paths that a pattern means: of modules that it matches, and of those in them.

    >>> sorted(meant("mlp", ["0.mlp.up", "0.mlp.down", "0.norm"]))
    ['0.mlp.down', '0.mlp.up']
    >>> sorted(meant("re:.*p$", ["0.mlp.up", "0.mlp.down", "0.attn.o"]))
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
    """A closing sentence with the path that is nearest to a pattern, or the last name of one."""
    every = {name for path in paths if path for name in _holders(path)}
    if not pattern.startswith(PREFIX):
        ends = every | {name.rpartition(".")[2] for name in every}
        return did_you_mean(pattern, ends if pattern not in ends else every)
    words = WORDS.findall(pattern.removeprefix(PREFIX))
    word = max((x.replace("\\", "") for x in words), key=len, default="")
    return did_you_mean(word, {name.rpartition(".")[2] for name in every})


def coded(text: str, where: str) -> str:
    """A format's text with its fields named, of weights that become codes.

    Raises:
        ConfigError: it is malformed, or has no codes.
    """
    text = with_width(text)
    found = parse_format_string(text)
    if found.is_identity or not found.is_deterministic:
        raise ConfigError(
            f"{where}: format '{text}' has no codes, because it "
            f"{'changes nothing' if found.is_identity else 'draws at random'}; expected one such "
            "as 'mxint8'."
        )
    return text


@lru_cache(maxsize=2**14)
def _holders(path: str) -> tuple[str, ...]:
    """A path and those of the modules that hold it."""
    steps = path.split(".")
    return tuple(".".join(steps[: n + 1]) for n in range(len(steps)))


def _are_texts(given: Iterable[object]) -> bool:
    return all(isinstance(x, str) for x in given)


def names_of_setting(given: object, where: str) -> tuple[str, ...]:
    """The texts of a setting that takes one or several; None is none.

    Raises:
        ConfigError: it is something else.
    """
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    if isinstance(given, Sequence | set | frozenset) and _are_texts(given):
        return tuple(given)
    raise ConfigError(f"{where}: expected names, got {given!r}.")


def check_pattern(pattern: str, where: str) -> None:
    """Raises ConfigError for a pattern that is empty, or whose expression is malformed."""
    expression = pattern.removeprefix(PREFIX)
    if not expression:
        raise ConfigError(f"{where}: expected a path or 're:' and an expression, got '{pattern}'.")
    try:
        re.compile(expression if pattern.startswith(PREFIX) else "")
    except re.error as error:
        raise ConfigError(f"{where}: '{expression}' is no regular expression: {error}.") from None
