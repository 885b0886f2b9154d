"""Commands of `chop` as data: what each runs, its settings, and the flags that all have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

RUN_FOLDER = "run_folder"
"""Name of the argument RUN among values."""
AS_JSON = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Write one JSON document to standard output. All else goes to standard error.",
        rich_help_panel="Output",
        show_default="off",
    ),
]
VERBOSE = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show debug messages and all tables. Otherwise some are on the page alone.",
        rich_help_panel="Output",
        show_default="off",
    ),
]
QUIET = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Show errors and final results only.",
        rich_help_panel="Output",
        show_default="off",
    ),
]
TRUST_CODE = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run code that a file names, as model = 'net.py:Net' in a TOML file or a run's folder;"
        " without it only code that the command line names.",
        rich_help_panel="More options",
        show_default="off",
    ),
]
"""Option of commands that make a model."""
IMPORTS = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        help="Import a module first, which adds formats, passes, samplers or the like.",
        metavar="TEXT",
        rich_help_panel="More options",
        show_default="none",
    ),
]
"""Option of commands with settings or models."""
FIGURES = Annotated[
    str | None,
    typer.Option(
        "--figures",
        help="Write figures as these files, too. LaTeX reads pdf.",
        metavar="pdf,png,svg",
        rich_help_panel="Output",
        show_default="those of a page",
    ),
]
"""Of jobs, and of commands that write the results of one."""
FIELDS = "__dataclass_fields__"
COMMON: dict[str, Any] = {"as_json": AS_JSON, "verbose": VERBOSE, "quiet": QUIET}
"""Flags of `chop` and of every command."""


@dataclasses.dataclass(frozen=True, eq=False)
class Command:
    """A command of `chop`.

    Attributes:
        run: does the work: a job takes its settings. Without `settings`, a function whose
            positional-only parameters are arguments and whose keyword-only ones are options.
        settings: `module:Class` of a frozen dataclass; imported when the options are needed.
        help: text of `--help`. Default: the source's docstring.
        defaults: field -> default in the place of the dataclass's.
        only: the fields that are options. Default: all.
        arguments: the fields that are arguments. A command with some reads no file of settings.
        is_slow: the command imports PyTorch, and says so at once on standard error.
        envvars: argument -> environment variable that replaces it.
        exit_code: result -> exit code.
        draws: a command without settings writes figures; jobs do.
        makes_models: a command without settings makes a model that a file may name.
        run_field: the field that an argument RUN, the output folder of a command, fills.
        run_help: help of RUN.
        on_run: action for a positional RUN, which replaces the job and its settings.
    """

    run: Callable[..., Any]
    settings: str = ""
    help: str = ""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    is_slow: bool = True
    envvars: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exit_code: Callable[[Any], int] = lambda result: 0
    draws: bool = False
    makes_models: bool = False
    run_field: str = ""
    run_help: str = ""
    on_run: Callable[[Path], Any] | None = None

    @property
    def trusts(self) -> bool:
        """True where `--trust-code` is an option: files that are read may name models."""
        has_model = not {"model", "models"}.isdisjoint(vars(self.source).get(FIELDS, ()))
        return self.makes_models or (has_model and not self.only)

    @property
    def source(self) -> Callable[..., Any]:
        """The dataclass or function whose signature gives the options."""
        return load(self.settings) if self.settings else self.run


def load(path: str) -> Any:
    """The object at `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def deferred(path: str) -> Callable[..., Any]:
    """The function at `module:name`, imported when it is called."""
    return lambda *args, **kwargs: load(path)(*args, **kwargs)
