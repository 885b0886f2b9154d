"""The commands, gathered."""

from __future__ import annotations

import typer

from chop.cli.bench import bench_app
from chop.cli.compress import compress_command, demo_command
from chop.cli.doctor import doctor_command
from chop.cli.search import search_app
from chop.cli.sweep import sweep_app

app = typer.Typer(
    name="chop",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Makes a PyTorch or Hugging Face model small, fast and deployable.",
    epilog="Start with [bold]chop demo[/]: the whole job on a built-in model, in minutes.",
)
app.command("compress")(compress_command)
app.command("demo")(demo_command)
app.command("doctor")(doctor_command)
app.add_typer(bench_app, name="bench")
app.add_typer(search_app, name="search")
app.add_typer(sweep_app, name="sweep")
