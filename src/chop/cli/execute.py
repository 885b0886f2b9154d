"""Execution of a command: settings from file and options, verbosity, JSON document."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import typing
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from chop.base.files import names_of_files
from chop.base.notices import set_logging_verbosity
from chop.base.plugins import import_plugin
from chop.base.trust import names_code, trust_code, trust_named
from chop.cli.command import COMMON, RUN_FOLDER, Command, load
from chop.cli.settings_file import read_settings
from chop.cli.values import read_value
from chop.cli.words import note_missing_options
from chop.errors import ChopError, ConfigError

POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


def execute(command: Command, ctx: typer.Context, given: Mapping[str, Any]) -> None:
    """Runs a command with the given options.

    Raises:
        ConfigError: if a setting of the file or an option is wrong.
        typer.Exit: if the exit code is not 0.
    """
    chosen = {
        name: value
        for name, value in given.items()
        if name not in COMMON and (_is_given(ctx, name) or name in command.defaults)
    }
    flags = {name: given[name] or ctx.find_root().params.get(name) for name in COMMON}
    is_slow = command.is_slow and not (command.on_run and RUN_FOLDER in chosen)
    if is_slow and not flags["quiet"]:
        # Importing PyTorch and transformers takes seconds without any other output.
        typer.echo("loading PyTorch and transformers ...", err=True)
    # Progress bars of other libraries would break ours; tqdm reads this when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TQDM_DELAY", str(10**9))  # for bars that code enables
    with names_of_files(), contextlib.ExitStack() as stack:
        stack.enter_context(_plain_warnings())
        if flags["as_json"]:
            stack.enter_context(_stdout_to_stderr())
        if flags["quiet"]:
            stack.enter_context(_quiet())
        if flags["verbose"] or flags["quiet"]:
            set_logging_verbosity("debug" if flags["verbose"] else "error")
        if flags["verbose"] and is_slow:
            from chop.report.report import with_details

            stack.enter_context(with_details())
        if (kinds := chosen.pop("figures", None)) is not None:
            from chop.report.report import further_figures

            stack.enter_context(further_figures([kind.strip() for kind in kinds.split(",")]))
        try:
            settings, result = _run(command, f"chop {_name(ctx)}", chosen)
        except ChopError as error:
            if note := note_missing_options(ctx, str(error)):
                error.args = (f"{error}{note}",)
            raise
    if flags["as_json"] and os.environ.get("RANK", "0") == "0":  # torchrun starts many processes
        from chop.runs import as_json

        document = {"command": f"chop {_name(ctx)}", "settings": settings, "result": result}
        typer.echo(json.dumps(as_json(document), indent=2))
    if code := command.exit_code(result):
        raise typer.Exit(code)


def _run(command: Command, where: str, chosen: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the settings that a command ran with, and its result."""
    for module in chosen.pop("imports", None) or ():
        import_plugin(module)
    if RUN_FOLDER in chosen:
        folder = chosen.pop(RUN_FOLDER).expanduser()
        if names_code(str(folder)) and command.run_field != "model":
            raise ConfigError(
                f"{where} '{folder}': expected an output folder; pass the model with --model "
                f"{folder}."
            )
        if command.on_run is not None:
            _check_alone(f"{where} '{folder}' describes an earlier run", folder, chosen)
            return {"run": folder}, command.on_run(folder)
        _check_alone(f"{where} '{folder}'", folder, chosen.keys() & {command.run_field})
        chosen[command.run_field] = str(folder)
    file, source = chosen.pop("config", None), command.source
    trusts = chosen.pop("trust_code", False)
    hints, parameters = typing.get_type_hints(source), inspect.signature(source).parameters
    positional = [name for name, each in parameters.items() if each.kind is POSITIONAL]
    arguments = {*positional, *command.arguments}
    values = {
        # An argument may be a path, and a path may have commas.
        name: value if name in arguments else read_value(value, hints[name])
        for name, value in chosen.items()
    }
    with trust_code() if trusts else trust_named(values):
        return _run_with(command, where, values, file)


def _run_with(
    command: Command, where: str, values: dict[str, Any], file: Path | None
) -> tuple[Any, Any]:
    """Runs a command with parsed option values; returns its settings and result."""
    from chop.config import convert, parse

    parameters = inspect.signature(command.source).parameters
    if not command.settings:
        # Before the function reads a file, or asks to trust one.
        hints = typing.get_type_hints(command.source, include_extras=True)
        values = {
            name: convert(value, hints[name], f"{where} --{name.replace('_', '-')}")
            for name, value in values.items()
        }
        positional = [n for n, p in parameters.items() if p.kind is POSITIONAL]
        arguments = [values.get(name, parameters[name].default) for name in positional]
        named = {name: value for name, value in values.items() if name not in positional}
        return values, command.run(*arguments, **named)
    cls = load(command.settings)
    given = read_settings(file, values, cls) if file else values
    settings = parse(cls, given, str(file or where))
    return settings, command.run(settings)


def _check_alone(where: str, folder: Path, given: Collection[str]) -> None:
    """Raises ConfigError if RUN comes with options that have no effect on it."""
    names = [f"--{name.replace('_', '-')}" for name in given]
    if not names:
        return
    from chop.runs import MANIFEST, read_manifest

    is_run = (folder / MANIFEST).exists()
    if is_run and isinstance(given, Mapping) and read_manifest(folder).settings.get("model"):
        from chop.actions.next_steps import compress_again

        other = f"compress its model again with {compress_again(folder, given)}"
    elif not is_run and "model" not in given:
        other = f"pass a model with --model {folder}"
    elif not folder.exists() and "dataset" not in given:
        other = f"write an option before '{folder}', such as --dataset {folder}"
    else:
        other = f"leave out '{folder}'"
    raise ConfigError(f"{where}: leave out {', '.join(names)}; or {other}.")


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _name(ctx: Any) -> str:
    """Returns the command's name, such as `search nas`, without the program's name."""
    return "" if ctx.parent is None else f"{_name(ctx.parent)} {ctx.info_name}".strip()


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirects standard output to standard error, including compiled code and subprocesses."""
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows warnings of this package as a sentence, without a source line."""
    usual, own = warnings.formatwarning, str(Path(__file__).parent.parent)

    def format_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if filename.startswith(own):
            return f"Warning: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = usual


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings, progress bars and rich's global console."""
    from rich import get_console

    console = get_console()
    console.quiet = True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        console.quiet = False
