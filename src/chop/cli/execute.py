"""Running a command: settings of a file and of options, verbosity, and the JSON document."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import typing
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from chop.cli.adapter import COMMON, Command, load
from chop.cli.values import as_json, read_value


def execute(command: Command, ctx: typer.Context, given: Mapping[str, Any]) -> None:
    """Runs a command with the options that were given.

    Raises:
        ConfigError: the settings of the file or of the options are wrong.
        typer.Exit: the exit code is not 0.
    """
    chosen = {
        name: value
        for name, value in given.items()
        if name not in COMMON and (_is_given(ctx, name) or name in command.defaults)
    }
    if command.is_slow and not given["quiet"]:
        # Importing PyTorch and transformers takes seconds in which nothing else shows.
        typer.echo("loading PyTorch and transformers ...", err=True)
    with contextlib.ExitStack() as stack:
        if given["as_json"]:
            stack.enter_context(_stdout_to_stderr())
        if given["quiet"]:
            stack.enter_context(_quiet())
        _set_level(given["verbose"], given["quiet"])
        settings, result = _run(command, f"chop {_name(ctx)}", chosen)
    if given["as_json"]:
        document = {"command": f"chop {_name(ctx)}", "settings": settings, "result": result}
        typer.echo(json.dumps(as_json(document), indent=2))
    if code := command.exit_code(result):
        raise typer.Exit(code)


def _run(command: Command, where: str, chosen: dict[str, Any]) -> tuple[Any, Any]:
    """The settings that a command ran with, and its result."""
    file, source = chosen.pop("config", None), command.source
    hints = typing.get_type_hints(source)
    values = {name: read_value(value, hints[name]) for name, value in chosen.items()}
    if not command.settings:
        return values, _call(command, values)
    from chop.config import load_toml, parse

    given = {**(load_toml(file) if file else {}), **values}
    settings = parse(load(command.settings), given, str(file or where))
    return settings, command.run(settings)


def _call(command: Command, values: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(command.run).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    named = {
        name: value for name, value in values.items() if name not in {p.name for p in positional}
    }
    return command.run(*(values.get(p.name, p.default) for p in positional), **named)


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _name(ctx: Any) -> str:
    """`search nas`: without the program's name, which may be `python -m chop.cli`."""
    return "" if ctx.parent is None else f"{_name(ctx.parent)} {ctx.info_name}".strip()


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Inside, all output goes to standard error, that of compiled code and other processes too."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, neither warnings nor what goes through rich's global console: bars and progress."""
    from rich import get_console

    os.environ["TQDM_DISABLE"] = "1"
    console = get_console()
    console.quiet = True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        console.quiet = False


def _set_level(verbose: bool, quiet: bool) -> None:
    if verbose or quiet:
        from chop.tools.logger import set_logging_verbosity

        set_logging_verbosity("debug" if verbose else "error")
