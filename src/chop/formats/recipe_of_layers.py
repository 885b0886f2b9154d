"""Conversion of layer formats to a default format and a recipe with few patterns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from chop.formats.recipe import PREFIX, Recipe, match_paths

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""Path component that is a layer index."""


def recipe_of_layers(formats: Mapping[str, str | None]) -> tuple[str, Recipe]:
    """Returns the most common format, and a recipe for the layers that differ.

    Args:
        formats: format string by layer path; None for layers that stay float. At least one layer
            must have a format.

    Example:
        >>> formats = {"0.up": "mxint4", "0.down": "mxint8", "1.up": "mxint4", "1.down": "mxint8"}
        >>> recipe_of_layers({**formats, "head": None, "2.up": "mxint4"})
        ('mxint4', Recipe(overrides={'down': 'mxint8'}, skip=('head',)))
    """
    usual = Counter(filter(None, formats.values())).most_common(1)[0][0]
    floats = {path for path, text in formats.items() if text is None}
    skip = tuple(_pattern(paths, formats) for paths in _alike(floats))
    overrides: dict[str, str] = {}
    for alike in _alike(formats.keys() - floats):
        by_format: dict[str, list[str]] = {}
        for path in alike:
            by_format.setdefault(str(formats[path]), []).append(path)
        by_format.pop(usual, None)
        overrides |= {_pattern(paths, formats): text for text, paths in by_format.items()}
    return usual, Recipe(overrides, skip)


def _alike(paths: Iterable[str]) -> list[list[str]]:
    """Groups paths that differ only in layer indices."""
    similar: dict[str, list[str]] = {}
    for path in sorted(paths, key=_in_order):
        similar.setdefault(NUMBER.sub("*", path), []).append(path)
    return list(similar.values())


def _in_order(path: str) -> list[tuple[int, str]]:
    return [(int(step) if step.isdigit() else -1, step) for step in path.split(".")]


def _pattern(paths: list[str], every: Iterable[str]) -> str:
    """Returns a pattern for exactly these similar paths: their shortest last part, or indices."""
    steps = NUMBER.split(paths[0])[-1].strip(".").split(".")
    ends = [".".join(steps[n:]) for n in reversed(range(len(steps)))]
    for end in (*filter(None, ends), *paths[: len(paths) == 1]):
        if match_paths(end, every) == set(paths):
            return end
    numbers = [
        sorted({*indices}, key=int) for indices in zip(*map(NUMBER.findall, paths), strict=True)
    ]
    varied = [i for i, indices in enumerate(numbers) if len(indices) > 1]
    if len(varied) < 2:
        texts = iter(f"({'|'.join(x)})" if len(x) > 1 else x[0] for x in numbers)
        expression = r"\.".join(
            next(texts) if s.isdigit() else re.escape(s) for s in paths[0].split(".")
        )
    else:
        expression = f"({'|'.join(re.escape(path) for path in paths)})"
    return f"{PREFIX}{expression}$"
