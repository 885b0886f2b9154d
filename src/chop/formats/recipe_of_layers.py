"""Recipe of layers: patterns that give them their formats, few where layers share one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from chop.formats.recipe import PREFIX, Recipe, meant

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A step of a path that counts layers."""


def recipe_of_layers(formats: Mapping[str, str | None]) -> tuple[str, Recipe]:
    """The format that most layers have, and the recipe that says what the others have.

    Args:
        formats: by path of a layer, its format as people type it; None where it stays float.
            At least one has a format.

    Example:
        >>> formats = {"0.up": "mxint4", "0.down": "mxint8", "1.up": "mxint4", "1.down": "mxint8"}
        >>> recipe_of_layers({**formats, "head": None, "2.up": "mxint4"})
        ('mxint4', Recipe(overrides={'down': 'mxint8'}, skip=('head',)))
    """
    usual = Counter(filter(None, formats.values())).most_common(1)[0][0]
    kept = {path for path, text in formats.items() if text is None}
    skip = tuple(_pattern(paths, formats) for paths in _alike(kept))
    overrides: dict[str, str] = {}
    for alike in _alike(formats.keys() - kept):
        by_format: dict[str, list[str]] = {}
        for path in alike:
            by_format.setdefault(str(formats[path]), []).append(path)
        by_format.pop(usual, None)
        overrides |= {_pattern(paths, formats): text for text, paths in by_format.items()}
    return usual, Recipe(overrides, skip)


def _alike(paths: Iterable[str]) -> list[list[str]]:
    """Paths that differ in numbers alone, together."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths, key=_in_order):
        found.setdefault(NUMBER.sub("*", path), []).append(path)
    return list(found.values())


def _in_order(path: str) -> list[tuple[int, str]]:
    return [(int(step) if step.isdigit() else -1, step) for step in path.split(".")]


def _pattern(paths: list[str], every: Iterable[str]) -> str:
    """What means these paths, alike but for numbers, and no other: the shortest end, or numbers."""
    steps = NUMBER.split(paths[0])[-1].strip(".").split(".")
    ends = [".".join(steps[n:]) for n in reversed(range(len(steps)))]
    for end in (*filter(None, ends), *paths[: len(paths) == 1]):
        if meant(end, every) == set(paths):
            return end
    numbers = [sorted({*found}, key=int) for found in zip(*map(NUMBER.findall, paths), strict=True)]
    varied = [i for i, found in enumerate(numbers) if len(found) > 1]
    if len(varied) < 2:
        texts = iter(f"({'|'.join(x)})" if len(x) > 1 else x[0] for x in numbers)
        expression = r"\.".join(
            next(texts) if s.isdigit() else re.escape(s) for s in paths[0].split(".")
        )
    else:
        expression = f"({'|'.join(re.escape(path) for path in paths)})"
    return f"{PREFIX}{expression}$"
