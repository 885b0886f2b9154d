"""Declarations of the `chop` commands: function, settings and common options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

COMMANDS_WITH = "chop.cli.app:commands_with"
"""Function that names the commands with a setting; imported for messages only."""
RUN_FOLDER = "run_folder"
"""Name of the argument RUN among the parsed values."""
AS_JSON = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Write one JSON document to standard output. Everything else goes to standard error.",
        rich_help_panel="Output",
        show_default="off",
    ),
]
VERBOSE = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show debug messages and all tables. By default some are only on the page.",
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
        help="Run code that a file names, such as model = 'net.py:Net' in a TOML file or a run's"
        " folder. By default only code named on the command line runs.",
        rich_help_panel="More options",
        show_default="off",
    ),
]
"""Option of commands that build a model."""
IMPORTS = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        help="Import a module first that adds formats, passes, samplers or similar.",
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
        help="Also write figures in these file formats. LaTeX reads pdf.",
        metavar="pdf,png,svg",
        rich_help_panel="Output",
        show_default="as on the page",
    ),
]
"""Option of jobs, and of commands that write a job's results."""
ALIASES = {
    "batch_sizes": "batch",
    "budgets": "budget",
    "caches": "cache",
    "dtypes": "dtype",
    "fields": "field",
    "formats": "format",
    "goals": "goal",
    "iterations": "iteration",
    "masks": "mask",
    "models": "model",
    "modes": "mode",
    "overrides": "override",
    "shapes": "shape",
    "start_from": "from",
}
"""Second names of options with several values, and of one whose name is a Python keyword."""
FIELDS = "__dataclass_fields__"
COMMON: dict[str, Any] = {"as_json": AS_JSON, "verbose": VERBOSE, "quiet": QUIET}
"""Flags of `chop` and of every command."""


@dataclasses.dataclass(frozen=True, eq=False)
class Command:
    """Declaration of a `chop` command.

    Attributes:
        run: function of the command; a job takes its settings. Without `settings`, its
            positional-only parameters become arguments and its keyword-only ones options.
        settings: `module:Class` of a frozen dataclass; imported when the options are needed.
        help: text of `--help`. Default: the docstring of the source.
        defaults: defaults by field that replace those of the dataclass.
        only: fields that become options. Default: all.
        arguments: fields that become arguments. Such a command reads no settings file.
        is_slow: the command imports PyTorch, and announces this on standard error.
        envvars: environment variable by argument that it replaces.
        exit_code: function from result to exit code.
        draws: the command writes figures although it has no settings, as jobs do.
        makes_models: a file may name the model although the command has no settings.
        run_field: field set by the argument RUN, an output folder.
        run_help: help of RUN.
        advice: sentence by option of other programs that the command lacks.
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
    advice: Mapping[str, str] = dataclasses.field(default_factory=dict)
    on_run: Callable[[Path], Any] | None = None

    @property
    def trusts(self) -> bool:
        """True if the command has `--trust-code`, because files that it reads may name models."""
        has_model = not {"model", "models"}.isdisjoint(vars(self.source).get(FIELDS, ()))
        return self.makes_models or (has_model and not self.only)

    @property
    def source(self) -> Callable[..., Any]:
        """Dataclass or function that defines the options."""
        return load(self.settings) if self.settings else self.run


def load(path: str) -> Any:
    """Returns the object at `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def deferred(path: str) -> Callable[..., Any]:
    """Returns the function at `module:name`, imported on its first call."""
    return lambda *args, **kwargs: load(path)(*args, **kwargs)
