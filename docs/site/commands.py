"""Pages of the commands, with the help, options and defaults that `--help` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from chop.cli.app import app
from docs.site.markdown import escaped, help_text, table

FOLDER = "docs/reference/commands"
DEFAULT = "  [default: "


def commands() -> dict[str, Any]:
    """Every command with its context, by its words behind `chop`."""
    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="chop")
    return dict(_below(root, context, ()))


def _below(group: Any, context: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        below = command.context_class(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            yield from _below(command, below, (*words, name))
        else:
            yield " ".join((*words, name)), (command, below)


def pages() -> dict[str, str]:
    """A page for each command."""
    return {path_of(name): page(name, *both) for name, both in commands().items()}


def path_of(name: str) -> str:
    """The path of a command's page."""
    return f"{FOLDER}/{name.replace(' ', '-')}.md"


def page(name: str, command: Any, context: Any) -> str:
    """The page of a command: what it does, its arguments, its options by heading."""
    usage = " ".join([f"chop {name}", *command.collect_usage_pieces(context)])
    parts = [f"# `chop {name}`", f"Usage: `{usage}`", help_text(command.help or "")]
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        panel = "Arguments" if is_argument else parameter.rich_help_panel or "Options"
        panels.setdefault(panel, []).append(parameter)
    for panel in sorted(panels, key=lambda panel: panel != "Arguments"):
        rows = [_row(parameter, context) for parameter in panels[panel]]
        parts += [f"## {panel}", table(("option", "what it is", "default"), rows)]
    return "\n\n".join(parts) + "\n"


def _row(parameter: Any, context: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        default = "required" if parameter.required else f"`{parameter.default}`"
        return f"`{parameter.name.upper()}`", escaped(parameter.help or ""), default
    spelling, text = parameter.get_help_record(context)
    text, _, default = text.partition(DEFAULT)
    default = default.removesuffix("]").strip()
    is_said = default.startswith("(")
    shown = escaped(default.strip("()")) if is_said else f"`{default}`" if default else ""
    return f"`{spelling}`", escaped(text.strip()), shown
