"""`chop` command: subcommands, exit codes and version."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import typer

from chop.cli.adapter import CommandGroup, flowing
from chop.cli.bench import bench_app
from chop.cli.command import AS_JSON, QUIET, VERBOSE, load
from chop.cli.compress import COMPRESS, DEMO
from chop.cli.docs import DOCS
from chop.cli.doctor import DOCTOR
from chop.cli.emit import EMIT
from chop.cli.evaluate import EVALUATE
from chop.cli.export import EXPORT
from chop.cli.lower import LOWER
from chop.cli.prune import PRUNE
from chop.cli.report import REPORT
from chop.cli.search import search_app
from chop.cli.shard import SHARD
from chop.cli.sweep import sweep_app
from chop.cli.ui import UI

ELSEWHERE = {
    **dict.fromkeys(
        ("quantize", "quantise", "ptq", "qat"),
        "chop compress quantizes a model; chop sweep quantize plots accuracy against bit width.",
    ),
    **dict.fromkeys(
        ("train", "finetune", "fine-tune"),
        "chop compress trains in a format (--qat-epochs); chop.train.fit trains in Python.",
    ),
    **dict.fromkeys(
        ("benchmark", "profile", "measure"), "chop bench model RUN measures speed and memory."
    ),
    "convert": "chop export RUN --to onnx writes a model for other engines.",
    "nas": "chop search nas searches architectures.",
    "eval": "chop evaluate RUN measures a model.",
}
"""Hints for command names that do not exist, by name."""
INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM, as in shells."""


class Commands(CommandGroup):
    """Group of all commands. After Ctrl-C or SIGTERM it prints the location of saved results."""

    table: ClassVar = {
        "compress": COMPRESS,
        "demo": DEMO,
        "docs": DOCS,
        "doctor": DOCTOR,
        "emit": EMIT,
        "evaluate": EVALUATE,
        "export": EXPORT,
        "lower": LOWER,
        "prune": PRUNE,
        "report": REPORT,
        "shard": SHARD,
        "ui": UI,
    }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolves the command; for a known wrong name, the error suggests the right one."""
        if args[0] in ELSEWHERE:
            ctx.fail(f"No such command '{args[0]}'. {ELSEWHERE[args[0]]}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        from chop.runs.interrupt import Terminated, terminable

        try:
            with terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from chop.base.tables import printable

            notes: list[str] = getattr(error, "__notes__", [])
            note = notes[-1] if notes else "no results were saved."
            typer.echo(f"\nInterrupted: {printable(note)}", err=True)
            is_terminated = isinstance(error, Terminated)
            raise typer.Exit(TERMINATED if is_terminated else INTERRUPTED) from None


app = typer.Typer(
    name="chop",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help", "--help-all"]},
    help="Make a PyTorch or Hugging Face model small, fast and deployable.",
    epilog=flowing("""Start with [bold]chop demo[/]: it compresses a built-in model in minutes.

[bold]Exit codes[/]: 0 success; 1 chop doctor found a problem, or chop itself failed; 2 a setting,
file, folder or data set is wrong, and the message says how to fix it; 3 no format is within
--max-drop of float and no model was saved; 130 stopped by Ctrl-C; 143 stopped by SIGTERM, which
batch systems send. After 130 and 143 the last line names the saved results.

[bold]Output[/]: with --json a command writes one JSON document to standard output and everything
else to standard error; after an error, standard output is empty. You can also give --json, -v and
-q directly after chop: chop -q demo."""),
)
for group, name in ((bench_app, "bench"), (search_app, "search"), (sweep_app, "sweep")):
    app.add_typer(group, name=name)


def commands_with(setting: str) -> list[str]:
    """Returns the names of the commands with a setting, for messages."""
    groups: dict[str, Any] = {"": Commands}
    for each in app.registered_groups:
        assert each.typer_instance is not None
        groups[f"{each.name} "] = each.typer_instance.info.cls
    return [
        f"chop {prefix}{name}"
        for prefix, group in groups.items()
        for name, command in group.table.items()
        if command.settings and not command.only
        if setting in load(command.settings).__dataclass_fields__
    ]


def _print_version(asked: bool) -> None:
    if asked:
        from chop.base.installed import __version__

        typer.echo(f"chop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    as_json: AS_JSON = False,
    verbose: VERBOSE = False,
    quiet: QUIET = False,
) -> None:
    """Holds the options of `chop` itself; commands read the output options from the context."""
