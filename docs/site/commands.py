"""Pages of the commands, with the help, options and defaults that `--help` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from chop.cli.app import app
from chop.cli.help import default_text, spelling, usage, whole_text
from docs.site.markdown import escaped, help_text, table

FOLDER = "docs/reference/commands"


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
    return {settings_path(name): page(name, *both) for name, both in commands().items()}


def settings_path(name: str) -> str:
    """The path of a command's page."""
    return f"{FOLDER}/{name.replace(' ', '-')}.md"


def page(name: str, command: Any, context: Any) -> str:
    """The page of a command: what it does, its arguments, its options by heading."""
    parts = [
        f"# `chop {name}`",
        f"Usage: `{usage(command, context)}`",
        help_text(command.help or ""),
    ]
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        panel = "Arguments" if is_argument else parameter.rich_help_panel or "Options"
        panels.setdefault(panel, []).append(parameter)
    for panel in sorted(panels, key=lambda panel: panel != "Arguments"):
        rows = [_row(parameter) for parameter in panels[panel]]
        parts += [f"## {panel}", table(("option", "what it is", "default"), rows)]
    return "\n\n".join(parts) + "\n"


def _row(parameter: Any) -> tuple[str, str, str]:
    text, default = escaped(whole_text(parameter)), default_text(parameter)
    if parameter.required:
        default = "required"
    elif not isinstance(parameter.show_default, str) and default:
        default = f"`{default}`"
    else:
        default = escaped(default)
    allowed = getattr(parameter, "range_text", "")
    return f"`{spelling(parameter)}`", f"{text} ({allowed})" if allowed else text, default
