"""Typer commands built from the settings of jobs.

A command has one source: the frozen dataclass of a job's settings, or a function. Its fields or
parameters give names, types, choices and defaults of options. The entries under `Attributes:` or
`Args:` of its docstring give the help; `Default: ...` at the end explains a default of None.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from chop.base.docstrings import entries, split_section
from chop.base.plugins import import_plugin
from chop.cli.command import (
    ALIASES,
    COMMON,
    FIGURES,
    IMPORTS,
    RUN_FOLDER,
    TRUST_CODE,
    Command,
)
from chop.cli.execute import execute
from chop.cli.names import completions, find_group, with_lists
from chop.cli.values import is_list, is_mapping, members
from chop.cli.words import (
    check_words,
    explain_option,
    without_argument_names,
    without_switch_values,
)
from chop.config import MORE, Range

PER_CENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
DEFAULT = re.compile(r"\s*Default: (.*)\.$")
POWER = re.compile(r"\b1(0{6,})\b")
"""Powers of ten, which help writes with an exponent."""


def _path(text: str | Path) -> Path:
    """Returns a path. Typer's own parser reads the empty text of an unset variable as "."."""
    if text == "":
        raise typer.BadParameter("got an empty text (is a variable unset?).")
    return Path(text)


def _number(text: str | float) -> float:
    """Returns a number; of per cent, the message names the share."""
    try:
        return float(text)
    except ValueError:
        per_cent = PER_CENT.fullmatch(str(text).strip())
        advice = f"; for per cent, write {float(per_cent[1]) / 100:g}" if per_cent else ""
        raise typer.BadParameter(f"got '{text}', expected a number{advice}.") from None


def _whole_number(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"got '{text}', expected a whole number.") from None


CONFIG = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with the same names. Options take precedence.",
        show_default="no file",
        parser=_path,
        metavar="PATH",
    ),
]


PARSERS: Mapping[Any, Callable[[Any], Any]] = {Path: _path, float: _number, int: _whole_number}
"""Parsers of values that Typer would read or refuse in other words."""


def _print_whole(ctx: typer.Context, asked: bool) -> None:
    """Prints the page with every option and exits."""
    if asked and not ctx.resilient_parsing:
        typer.echo(_page(ctx.command, ctx, is_whole=True))
        raise typer.Exit


def _page(command: Any, ctx: Any, is_whole: bool) -> str:
    from chop.cli.help import Page  # imports rich

    return Page(command, ctx).text(is_whole)


HELP_ALL = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Show this message with every option, and exit.",
        is_eager=True,
        expose_value=False,
        callback=_print_whole,
        show_default=False,
    ),
]
NO_RUN: dict[str, Any] = {"show_default": "none"}
TYPES = {int: "INTEGER", float: "FLOAT", Path: "PATH"}
"""Type names on a help page; all others are TEXT."""


class _SingleCommand(TyperCommand):
    """Command with a help page from `chop.cli.help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses arguments, and rejects a text option that was given twice.

        Of other options the last one counts. Modules of `--import` add their names to the help.
        """
        if not ctx.resilient_parsing:
            args = without_argument_names(self.params, args)
            args = without_switch_values(self.params, args)
            try:
                parsed: Any = self.make_parser(ctx).parse_args(args=[*args])
            except Exception as error:  # the class depends on the version of typer
                explain_option(ctx, self.params, str(getattr(error, "option_name", "")))
                raise
            given, order = parsed[0], parsed[2]
            if given.get("help") or given.get("help_all"):
                for module in given.get("imports") or ():
                    import_plugin(module)
            for option in order:
                is_text = option.type_descriptor.annotation is str
                if order.count(option) > 1 and is_text:
                    ctx.fail(
                        f"{option.opts[0]} was passed twice: pass it once. Separate several values "
                        "with commas, if it takes several."
                    )
            check_words(ctx, self.params, args, parsed[1])
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help page with the most used options."""
        formatter.write(_page(self, ctx, is_whole=False))


class CommandGroup(TyperGroup):
    """Group of commands that builds the options of a command on demand."""

    table: ClassVar[Mapping[str, Command]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Help and "did you mean" take the names from here, and build nothing.
        names = {name: TyperCommand(name) for name in self.table}
        self.commands = {**names, **self.commands}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Prints the help page if no command is given; reads `--help NAME` as `NAME --help`."""
        if len(args) > 1 and args[0] in ctx.help_option_names and args[1] in self.commands:
            args = [*args[1:], args[0]]
        if not args and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx))
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help page of the group."""
        formatter.write(_page(self, ctx, is_whole=True))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command of that name with its options, or None."""
        if cmd_name in self.table:
            return build_command(self.table[cmd_name], cmd_name)
        if cmd_name not in self.commands and Path(cmd_name).exists():
            names = ", ".join(self.list_commands(ctx))
            ctx.fail(f"'{cmd_name}' is a file or folder: write a command before it, of {names}.")
        return super().get_command(ctx, cmd_name)


def command_group(table: Mapping[str, Command], text: str) -> typer.Typer:
    """Returns a group of commands by name; `text` is its help."""
    group = type("Group", (CommandGroup,), {"table": table})
    return typer.Typer(cls=group, rich_markup_mode="rich", help=flowing(text))


def build_command(command: Command, name: str) -> Any:
    """Returns the Typer command: one option per field, and the options that all commands have."""
    text = command.help or split_section(inspect.getdoc(command.source) or "", "Args")[0]
    return _built(command, name, flowing(with_lists(text)))


@cache
def _built(command: Command, name: str, text: str) -> Any:

    def callback(ctx: typer.Context, **given: Any) -> None:
        execute(command, ctx, given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("ctx", keyword, annotation=typer.Context)]
    if command.run_help:
        argument = typer.Argument(help=command.run_help, metavar="RUN", parser=_path, **NO_RUN)
        hint = Annotated[Path | None, argument]
        parameters.append(inspect.Parameter(RUN_FOLDER, keyword, default=None, annotation=hint))
    parameters += _options(command)
    if command.settings and not command.only and not command.arguments:
        parameters.append(inspect.Parameter("config", keyword, default=None, annotation=CONFIG))
    if command.trusts:
        trust = inspect.Parameter("trust_code", keyword, default=False, annotation=TRUST_CODE)
        parameters.append(trust)
    if command.trusts or command.settings:
        parameters.append(inspect.Parameter("imports", keyword, default=None, annotation=IMPORTS))
    if command.settings or command.draws:
        parameters.append(inspect.Parameter("figures", keyword, default=None, annotation=FIGURES))
    for flag, annotation in COMMON.items():
        parameters.append(inspect.Parameter(flag, keyword, default=False, annotation=annotation))
    parameters.append(inspect.Parameter("help_all", keyword, default=False, annotation=HELP_ALL))
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    single = typer.Typer(rich_markup_mode="rich", add_completion=False)
    # The help option is made once, with whichever context asks first.
    help_options = {"help_option_names": ["-h", "--help"]}
    single.command(name, cls=_SingleCommand, help=text, context_settings=help_options)(callback)
    made: Any = typer.main.get_command(single)
    made.advice = command.advice  # read by `chop.cli.words`
    ranges = _ranges(command.source)
    for parameter in made.params:
        parameter.range_text = ranges.get(parameter.name, "")  # read by `chop.cli.help`
    return made


def flowing(text: str) -> str:
    """Returns a help text with one line per paragraph; indented examples stay as typed."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(p if p.startswith("  ") else " ".join(p.split()) for p in paragraphs)


def _options(command: Command) -> Iterator[inspect.Parameter]:
    source = command.source
    hints, texts = typing.get_type_hints(source), entries(source)
    parameters = inspect.signature(source).parameters
    for name, parameter in sorted(parameters.items(), key=lambda x: _is_rare(source, x[0])):
        if command.only and name not in command.only:
            continue
        default = command.defaults.get(name, parameter.default)
        text, meaning = _split_default(texts.get(name, ""))  # no texts under `python -OO`
        required = default is inspect.Parameter.empty
        show_default = True if _has_text(default) else meaning
        settings: dict[str, Any] = {"help": text, "show_default": required or show_default}
        hint, annotation = hints[name], _typer_type(hints[name])
        choices = _choices(hint)
        if members(hint) != [bool]:
            settings["metavar"] = _form(hint, choices)
        if choices:
            settings["autocompletion"] = choices.copy
        elif group := find_group(name, settings.get("metavar", "")):
            settings["autocompletion"] = completions(group)
        if annotation in PARSERS:
            settings["parser"] = PARSERS[annotation]
        if parameter.kind is parameter.POSITIONAL_ONLY or name in command.arguments:
            settings["metavar"] = name.upper()
            info = typer.Argument(envvar=command.envvars.get(name), **settings)
        else:
            panel = _panel(source, name)
            info = typer.Option(*_spellings(name, hint), rich_help_panel=panel, **settings)
        yield inspect.Parameter(
            name,
            parameter.KEYWORD_ONLY,
            default=default if required else _typer_default(default),
            annotation=Annotated[annotation if required else annotation | None, info],
        )


def _split_default(text: str) -> tuple[str, str | bool]:
    """Returns capitalized help, and the text after `Default:` at its end (False: none)."""
    match = DEFAULT.search(text)
    meaning = match[1] if match else False
    text = DEFAULT.sub("", text)
    return text[:1].upper() + text[1:], meaning


def _has_text(default: Any) -> bool:
    """Returns False if the docstring describes the default: None, empty, or from a factory."""
    return isinstance(default, bool | int | float | str | Path) or (
        isinstance(default, tuple) and bool(default)
    )


def _ranges(source: Callable[..., Any]) -> dict[str, str]:
    """Returns the ranges of numeric options as help shows them: `1 to 1e9`."""
    hints = typing.get_type_hints(source, include_extras=True)
    ranges = {
        name: each
        for name, hint in hints.items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, Range)
    }
    return {name: POWER.sub(lambda m: f"1e{len(m[1])}", str(each)) for name, each in ranges.items()}


def _typer_default(default: Any) -> Any:
    if isinstance(default, tuple):
        return [str(item) for item in default] or None
    return default if _has_text(default) else None


def _typer_type(hint: Any) -> Any:
    """Returns the type that Typer converts to; `chop.cli.values` parses lists and mappings."""
    if is_list(hint) or is_mapping(hint):
        return list[str]
    kinds = members(hint)
    return kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float, Path) else str


def _choices(hint: Any) -> list[str]:
    """Returns the choices of a `Literal`, or of a list of them."""
    kinds = [_item(hint)] if is_list(hint) else members(hint)
    is_literal = [typing.get_origin(kind) for kind in kinds] == [Literal]
    return [str(choice) for choice in typing.get_args(kinds[0])] if is_literal else []


def _form(hint: Any, choices: list[str]) -> str:
    """Returns the form of a value: `INTEGER`, `TEXT,...`, `one|two`, `NAME=VALUE`, `NAME=JSON`."""
    if is_mapping(hint):
        value = typing.get_args(members(hint)[0])[1]
        is_json = value is Any or is_mapping(value)
        return f"NAME={'JSON' if is_json else 'VALUE,...' if is_list(value) else 'VALUE'}"
    kinds = [_item(hint)] if is_list(hint) else members(hint)
    one = "|".join(choices) or (TYPES.get(kinds[0], "TEXT") if len(kinds) == 1 else "TEXT")
    return f"{one},..." if is_list(hint) else one


def _item(hint: Any) -> Any:
    """Returns the item type of a list."""
    (kind,) = members(hint)
    return typing.get_args(kind)[0]


def _spellings(name: str, hint: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if members(hint) == [bool]:
        return [f"{option}/--no-{option[2:]}"]
    return [option, f"--{ALIASES[name]}"] if name in ALIASES else [option]


def _panel(source: Callable[..., Any], name: str) -> str | None:
    """Returns an option's heading: its field's, or the first docstring line of its base class."""
    if not isinstance(source, type):
        return None
    if _is_rare(source, name):
        return MORE["panel"]
    owner = next(c for c in reversed(source.__mro__) if name in inspect.get_annotations(c))
    return None if owner is source else (owner.__doc__ or "").partition("\n")[0].rstrip(".")


def _is_rare(source: Callable[..., Any], name: str) -> bool:
    """Returns True for rarely needed options, which help lists last."""
    fields: Mapping[str, Any] = getattr(source, "__dataclass_fields__", {})
    return name in fields and fields[name].metadata.get("panel") == MORE["panel"]
