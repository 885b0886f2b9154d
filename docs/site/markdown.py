"""Markdown of docstrings and help: prose is escaped, code and lists stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from chop.base.docstrings import split_section

SPECIAL = re.compile(r"([<>*_\[\]$|~#{}\\])")
CODE = re.compile(r"(`[^`\n]+`)")
STYLE = re.compile(r"\[bold\](.*?)\[/\]")
SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields", "Example", "Source")
ENTRY = re.compile(r"(?P<name>\*{0,2}\w[\w.]*)(?P<kind> \(.*\))?: (?P<text>.*)", re.DOTALL)
"""`name: text`, or `name (type, default ...): text`."""


def escaped(text: str) -> str:
    """Prose as it is shown; what stands between backticks is code.

    >>> escaped("`a_b` of a_b")
    '`a_b` of a\\\\_b'
    """
    parts = CODE.split(text)
    return "".join(p if CODE.fullmatch(p) else SPECIAL.sub(r"\\\1", p) for p in parts)


def code(text: str, language: str = "text") -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown; those of code may hold bars."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def help_text(text: str) -> str:
    """Help of a command: indented lines are commands, `[bold]` is bold."""
    return "\n\n".join(_help_paragraphs(text))


def _help_paragraphs(text: str) -> Iterator[str]:
    examples: list[str] = []
    for paragraph in [*re.split(r"\n\s*\n", text.strip("\n")), ""]:
        if paragraph.startswith("  "):
            examples += [line.strip() for line in paragraph.splitlines()]
            continue
        if examples:
            yield code("\n".join(examples))
            examples = []
        parts = STYLE.split(" ".join(paragraph.split()))
        yield "".join(f"**{escaped(p)}**" if n % 2 else escaped(p) for n, p in enumerate(parts))


def docstring(text: str) -> str:
    """A Google-style docstring: prose, its sections as lists, examples as code."""
    rest, sections = text, {}
    for heading in SECTIONS:
        before, section, after = split_section(rest, heading)
        if section:
            sections[heading], rest = section, before + after
    parts = [*_paragraphs(rest)]
    for heading, section in sections.items():
        if heading == "Example":
            parts.append(code(_unindented(section.partition("\n")[2]), "python"))
            continue
        first, _, below = section.partition(":")[2].partition("\n")
        lines = [*filter(None, (first.strip(), *_unindented(below).splitlines()))]
        parts += [f"**{heading}**", "\n".join(_entries(lines))]
    return "\n\n".join(part for part in parts if part)


def _entries(lines: Sequence[str]) -> Iterator[str]:
    """Named entries as a list, below the prose that stands before them."""
    starts = [number for number, line in enumerate(lines) if ENTRY.match(line)]
    ends = [*starts, len(lines)]
    if prose := lines[: ends[0]]:
        said, below = _announced(prose)
        yield escaped(said)
        yield from ["", *_entries(below)] if below else ()
    for start, end in pairwise(ends):
        said, below = _announced(lines[start:end])
        name, kind, text = ENTRY.match(said).groups()  # type: ignore[union-attr]
        yield f"- `{name}`{escaped(kind or '')}: {escaped(text)}"
        yield from (f"  {line}" for line in _entries(below))


def _announced(lines: Sequence[str]) -> tuple[str, list[str]]:
    """A text on one line, and the lines of the entries that its last colon announces."""
    for count in range(1, len(lines)):
        below = _unindented("\n".join(lines[count:])).splitlines()
        if lines[count - 1].endswith(":") and any(map(ENTRY.match, below)):
            return _joined(lines[:count]), below
    return _joined(lines), []


def _joined(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        lines = paragraph.splitlines()
        if paragraph.lstrip().startswith(">>>"):
            yield code(_unindented(paragraph), "pycon")
        elif lines and all(line.startswith("  ") for line in lines):
            yield code(_unindented(paragraph))
        elif paragraph.strip() == "::":
            continue
        elif re.match(r"(?:[-*]|\d+\.) ", paragraph):
            yield "\n".join(map(_item, lines))
        else:
            yield escaped(re.sub(r"::$", ":", " ".join(paragraph.split())))


def _item(line: str) -> str:
    mark, text = re.match(r"(\s*(?:[-*]|\d+\.) |\s*)(.*)", line).groups()  # type: ignore[union-attr]
    return mark + escaped(text)


def _unindented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)
