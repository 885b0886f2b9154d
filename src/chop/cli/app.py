"""The commands, gathered."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from typer.core import TyperGroup

from chop.cli.bench import bench_app
from chop.cli.compress import compress_command, demo_command
from chop.cli.doctor import doctor_command
from chop.cli.search import search_app
from chop.cli.sweep import sweep_app
from chop.tables import printable

INTERRUPTED = 130
"""The exit code of a command that was stopped by Ctrl-C, as shells have it."""


class Commands(TyperGroup):
    """The commands; one that is stopped by hand says what is kept."""

    def invoke(self, ctx: Any) -> Any:
        """Runs what was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            (*_, kept) = ["nothing was written.", *getattr(error, "__notes__", [])]
            typer.echo(f"\nInterrupted: {printable(kept)}", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="chop",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Makes a PyTorch or Hugging Face model small, fast and deployable.",
    epilog="""Start with [bold]chop demo[/]: the whole job on a built-in model, in minutes.

[bold]Exit codes[/]: 0 all is well; 1 chop doctor found something wrong, or chop itself failed;
2 a setting, file, folder or data set is wrong, one sentence says how; 3 no format kept within
--max-drop and no model was saved; 130 stopped by Ctrl-C, one sentence says what is kept.""",
)
app.command("compress")(compress_command)
app.command("demo")(demo_command)
app.command("doctor")(doctor_command)
app.add_typer(bench_app, name="bench")
app.add_typer(search_app, name="search")
app.add_typer(sweep_app, name="sweep")


def _flowing(text: str | None) -> str | None:
    """Help whose paragraphs are one line each, for the terminal to wrap; examples stay as typed."""
    if text is None:
        return None
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(p if p.startswith("  ") else " ".join(p.split()) for p in paragraphs)


def _let_help_flow(commands: typer.Typer) -> None:
    """Does so for all commands below."""
    for command in commands.registered_commands:
        command.help = _flowing(command.help or inspect.getdoc(command.callback))
    for group in commands.registered_groups:
        assert group.typer_instance is not None
        group.typer_instance.info.help = _flowing(group.typer_instance.info.help)
        _let_help_flow(group.typer_instance)


app.info.epilog = _flowing(app.info.epilog)
_let_help_flow(app)
