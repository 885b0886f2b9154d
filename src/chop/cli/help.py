"""Pages of `--help` (at most 60 lines, most used options) and `--help-all` (every option).

Typer's own pages read brackets such as those of `pip install 'mase-chop[ui]'` as markup, and take
four lines per option. Here `[bold]...[/]` is the only markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.text import Text

from chop.base.plugins import GROUPS
from chop.cli.names import choices_text, find_group, from_packages

LONGEST = 60
"""Maximum lines of a page at 80 columns."""
WIDEST = 29
"""Maximum width of an option's name and type; the text starts to its right."""
FIRST = ("model", "models", "weights", "dataset", "formats", "format", "to", "out")
"""Options listed first."""
MORE = "More options"
OUTPUT = "Output"
CHOICES = re.compile(r" \S*\|[^,\s]*")
BOLD = re.compile(r"\[bold\](.*?)\[/\]")
PHRASE = re.compile(
    r"(?<=[\w)`])(?:[.:;](?= |$)|,? (?=\()|,(?= )|(?= (?:that|which|as|for|of|in)\b))"
)


def plain(text: str) -> str:
    """Removes the markup of a help text.

    >>> plain("[bold]Needs[/] pip install 'mase-chop[ui]'.")
    "Needs pip install 'mase-chop[ui]'."
    """
    return BOLD.sub(r"\1", text)


def spelling(parameter: Any, is_whole: bool = True) -> str:
    """Returns an option's names and value type, or an argument's name.

    Args:
        parameter: parameter of Typer.
        is_whole: include second names, negations of flags that are off, and long choices.
    """
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name).upper()
        return f"{name}..." if parameter.nargs != 1 else name
    names = sorted(parameter.opts, key=len)
    if parameter.is_flag:
        is_on = is_whole or parameter.default is True
        return ", ".join([*names, *(parameter.secondary_opts if is_on else ())])
    text = f"{', '.join(names if is_whole else parameter.opts[:1])} {parameter.metavar or 'TEXT'}"
    is_long = not is_whole and len(text) > WIDEST
    return CHOICES.sub(" TEXT", text) if is_long else text


def whole_text(parameter: Any) -> str:
    """Returns the help of an option with the names that it accepts."""
    group = _group(parameter)
    return f"{plain(parameter.help or '')} {choices_text(group) if group else ''}".strip()


def default_text(parameter: Any) -> str:
    """Returns the text for the default of an option, or "" if the page shows none."""
    if isinstance(parameter.show_default, str):
        return str(parameter.show_default)
    default = parameter.default
    if parameter.required or not parameter.show_default or callable(default):
        return ""
    if getattr(parameter, "is_flag", False):
        return "on" if default else "off"
    return ", ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def notes(parameter: Any) -> list[str]:
    """Returns bracketed notes for an option (range and default): full, shorter, empty."""
    default, allowed = default_text(parameter), getattr(parameter, "range_text", "")
    default = f"default: {default}" if default else ""
    if isinstance(parameter.envvar, str):
        default = f"or variable {parameter.envvar}"
    candidates = dict.fromkeys(("; ".join(filter(None, (allowed, default))), default, ""))
    return [note and f"[{note}]" for note in candidates]


def one_line(text: str, room: int) -> str:
    """Shortens a text to one line: its first sentence, or whole phrases of it.

    >>> one_line("Number of rows. All by default.", 40)
    'Number of rows.'
    >>> one_line("Built-in model (vit, cnn), local folder, hub name.", 30)
    'Built-in model (vit, cnn) ...'
    """
    first = re.split(r"(?<=[^.]\.) ", text, maxsplit=1)[0]
    if len(first) <= room:
        return first
    ends = (match.start() for match in PHRASE.finditer(first))
    fitting = [first[:end] for end in ends if end + 4 <= room and _is_balanced(first[:end])]
    cut = fitting[-1] if fitting else first[: room - 4].rpartition(" ")[0]
    return f"{cut.rstrip(',:; ')} ..."


def _is_balanced(text: str) -> bool:
    return text.count("(") == text.count(")") and text.count("`") % 2 == 0


def usage(command: Any, ctx: Any) -> str:
    """Returns the usage line of a command: `chop ui [OPTIONS] [FOLDER]`."""
    pieces = command.collect_usage_pieces(ctx)
    return " ".join([ctx.command_path, *(re.sub("[{}]", "", piece) for piece in pieces)])


class Page:
    """Help page of a command or group.

    Args:
        command: command of Typer.
        ctx: its context, which has its name.
    """

    def __init__(self, command: Any, ctx: Any) -> None:
        self.command, self.ctx = command, ctx
        self.console = Console(highlight=False)

    def text(self, is_whole: bool) -> str:
        """Returns the page; for terminals with color codes.

        Args:
            is_whole: include everything. A page of at most `LONGEST` lines always does.
        """
        lines = list(self.whole())
        if not is_whole and len(lines) > LONGEST + 1:
            lines = self.short()
        with self.console.capture() as captured:
            for line in lines:
                self.console.print(line, soft_wrap=True)
        return captured.get().rstrip()

    def whole(self) -> Iterator[Text]:
        """Yields the lines of the full page."""
        yield from self._head()
        yield from self._commands()
        for heading, parameters in self._panels().items():
            yield from self._options(heading, parameters, is_whole=True)
        yield from self._extensions()
        for block in self._details:
            yield from self._block(block)

    def short(self) -> list[Text]:
        """Returns the lines of the short page, with as many details as fit."""
        listed, hidden = self._parted()
        lines = [*self._head()]
        arguments = [each for each in listed if each.param_type_name == "argument"]
        options = [each for each in listed if each.param_type_name != "argument"]
        for heading, parameters in (("Arguments", arguments), ("Options", options)):
            lines += self._options(heading, parameters, is_whole=False)
        where = f", explained by {self.ctx.command_path} --help-all"
        lines += self._wrapped(Text.assemble((MORE, "bold"), where), 0)
        names = ", ".join(each.opts[0] for each in hidden)
        lines += [*self._wrapped(Text(names, "cyan"), 2), Text(), *self._extensions()]
        for block in map(list, map(self._block, self._details)):
            if len(lines) + len(block) <= LONGEST + 1:  # the last line is empty
                lines += block
        return lines

    @cached_property
    def _blocks(self) -> list[list[str]]:
        """Paragraphs of the text, each with the indented paragraphs that follow it."""
        rows: list[list[str]] = []
        text = "\n\n".join(filter(None, (self.command.help, self.command.epilog)))
        for paragraph in filter(None, text.split("\n\n")):
            if paragraph.startswith("  ") and rows:
                rows[-1].append(paragraph)
            else:
                rows.append([paragraph])
        return rows

    @property
    def _details(self) -> list[list[str]]:
        return [block for block in self._blocks[1:] if not block[0].startswith("[bold]Example")]

    def _head(self) -> Iterator[Text]:
        yield from self._wrapped(
            Text.assemble(("Usage", "bold"), f": {usage(self.command, self.ctx)}"), 0
        )
        yield Text()
        for block in self._blocks[:1]:
            yield from self._block(block)
        for block in self._blocks[1:]:
            if block not in self._details:
                yield from self._block(block)

    def _block(self, block: Sequence[str]) -> Iterator[Text]:
        yield from self._wrapped(_styled(block[0]), 0)
        for line in block[1:]:
            yield from self._example(line.strip())
        yield Text()

    def _example(self, line: str) -> Iterator[Text]:
        """Yields an example as a command to paste, with its comment where it fits."""
        command, _, comment = (part.strip() for part in line.partition(" # "))
        if not command.startswith(("chop ", "torchrun ")):
            yield from self._wrapped(_styled(line), 2)
            return
        room = self.console.width - 4  # behind the indentation, ahead of the backslash
        if comment and len(line) > room + 2:
            yield from self._wrapped(Text(f"# {comment}", "dim"), 2)
            line, comment = command, ""
        rows = [""]
        for word in command.split(" "):
            if rows[-1] and len(rows[-1]) + 1 + len(word) > room:
                rows.append("   ")
            rows[-1] = f"{rows[-1]} {word}" if rows[-1] else word
        gap = line[len(command) :].partition("#")[0]
        rows[-1] += f"{gap}# {comment}" if comment else ""
        yield from (Text(f"  {row} \\") for row in rows[:-1])
        yield Text(f"  {rows[-1]}")

    def _commands(self) -> Iterator[Text]:
        if not hasattr(self.command, "list_commands"):
            return
        names = self.command.list_commands(self.ctx)
        yield Text("Commands", "bold")
        width = max(map(len, names))
        for name in names:
            text = self.command.get_command(self.ctx, name).help or ""
            yield from self._row(name, width, one_line(plain(text.partition("\n\n")[0]), 999), "")
        yield Text()

    def _parameters(self) -> list[Any]:
        return [each for each in self.command.get_params(self.ctx) if not each.hidden]

    def _panels(self) -> dict[str, list[Any]]:
        """Returns parameters by heading: model and data first, rare ones near the end."""
        panels: dict[str, list[Any]] = {}
        for each in self._parameters():
            is_argument = each.param_type_name == "argument"
            heading = "Arguments" if is_argument else each.rich_help_panel or "Options"
            panels.setdefault(heading, []).append(each)
        ranks = {"Arguments": 0, MORE: 3, OUTPUT: 4}
        order = sorted(
            panels, key=lambda name: (ranks.get(name, 2 - _has_model(panels[name])), name)
        )
        return {heading: panels[heading] for heading in order}

    def _parted(self) -> tuple[list[Any], list[Any]]:
        """Returns the parameters that the short page explains (`FIRST` first), and the others."""
        parameters = self._parameters()
        listed = [e for e in parameters if _panel(e) != MORE or e.name in FIRST]
        ranks = {name: rank for rank, name in enumerate(FIRST)}
        last = len(FIRST) + 1
        listed.sort(key=lambda e: ranks.get(e.name, last if _panel(e) == OUTPUT else last - 1))
        return listed, [each for each in parameters if each not in listed]

    def _options(self, heading: str, parameters: list[Any], is_whole: bool) -> Iterator[Text]:
        if not parameters:
            return
        yield Text(heading, "bold")
        names = [spelling(each, is_whole) for each in parameters]
        width = max([len(name) for name in names if len(name) <= WIDEST], default=WIDEST)
        for name, each in zip(names, parameters, strict=True):
            text, note = whole_text(each), notes(each)[0]
            if not is_whole:
                text, note = self._short(each, self.console.width - width - 4)
            yield from self._row(name, width, text, note)
        yield Text()

    def _short(self, parameter: Any, room: int) -> tuple[str, str]:
        """Returns the first sentence of an option and the longest note that fits."""
        text = plain(parameter.help or "")
        for note in notes(parameter):
            line = one_line(text, room - len(note) - 1 if note else room)
            if not note or not (line.endswith(" ...") or len(line) < 12):
                break
        return line, note

    def _extensions(self) -> Iterator[Text]:
        """Yields names that installed packages add to the choices of options."""
        groups = dict.fromkeys(filter(None, map(_group, self._parameters())))
        names = [
            f"{GROUPS.get(group, group[:-1])} {name}{package and f' ({package})'}"
            for group in groups
            for name, package in from_packages(group).items()
        ]
        if names:
            yield from self._wrapped(
                Text.assemble(("From other packages", "bold"), ": ", ", ".join(names)), 0
            )
            yield Text()

    def _row(self, name: str, width: int, text: str, note: str) -> Iterator[Text]:
        """Yields an option with its text to the right of its name, or below a long name."""
        cell = Text(f"  {name}", "cyan")
        body = Text.assemble(text, " " if text and note else "", (note, "dim"))
        rows = [*self._wrapped(body, width + 4)]
        if len(name) <= width and rows:
            yield Text.assemble(cell, " " * (width + 2 - len(name)), rows[0][width + 4 :])
            rows = rows[1:]
        else:
            yield from self._wrapped(Text(name, "cyan"), 2)
        yield from rows

    def _wrapped(self, text: Text, indent: int) -> Iterator[Text]:
        for line in text.wrap(self.console, max(self.console.width - indent, 10)):
            line.rstrip()
            yield Text.assemble(" " * indent, line)


def _styled(text: str) -> Text:
    """Renders `[bold]...[/]` of a text in bold."""
    parts = BOLD.split(text)  # every second one is bold
    return Text.assemble(*((part, "bold" if i % 2 else "") for i, part in enumerate(parts)))


def _group(parameter: Any) -> str | None:
    return find_group(str(parameter.name), str(parameter.metavar or ""))


def _panel(parameter: Any) -> str | None:
    return getattr(parameter, "rich_help_panel", None)


def _has_model(parameters: Sequence[Any]) -> bool:
    return any(each.name in ("model", "models") for each in parameters)
