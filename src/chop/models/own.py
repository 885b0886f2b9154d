"""Models of user code, `file.py:Net`, and of timm."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.base.files.reading import read_bytes
from chop.base.installed import how_to_get
from chop.base.trust import CODE_FILE, TIMM, names_code, running
from chop.config import with_checked_arguments
from chop.errors import ConfigError, UnavailableError, did_you_mean, first_line, shorten
from chop.models.weights import check_readable, load_weights

if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = Path(__file__).parents[1]
"""Folder of `chop`, whose lines are not the user's."""
SOURCE = "__chop_source__"
"""Attribute of an executed module: its file and source text."""
MAKES_NAMES = re.compile(rb"__getattr__|globals\(\)|setattr|exec\(")
"""Code by which a file can define names dynamically."""
ARGUMENTS_ADVICE = (
    " It reads the command line, which has the arguments of chop: put that below "
    "if __name__ == '__main__'."
)
CLASSES = ("num_classes", "num_labels")
"""Class-count arguments of model classes, filled from the data."""


@with_checked_arguments
def is_own(name: str) -> bool:
    """Returns whether a name is `file.py:Net` or `timm:NAME`, whose weights are a file."""
    return names_code(name)


def build_own(
    name: str, num_labels: int | None, weights: str | Path | None, pretrained: bool
) -> nn.Module:
    """Builds a model for which `is_own` is true.

    Args:
        name: `file.py:Net` executes the file and calls its class or function `Net`, with the number
            of classes if it needs one. `timm:NAME` is a timm model.
        num_labels: number of classes of the data.
        weights: state dict, .safetensors or .pt with tensors only; None uses the weights of the
            class or of timm.
        pretrained: False draws fresh timm weights.
    Raises:
        ConfigError: if the file, name or model does not exist, it cannot be built, or the name
            comes from a file instead of the command (see `chop.base.trust`).
        CheckpointError: if the weights cannot be read or do not fit.
        UnavailableError: if timm or its weights are missing.
    """
    with running(name):
        if name.startswith(TIMM):
            model = _build_from_timm(
                name.removeprefix(TIMM), num_labels, pretrained and weights is None
            )
        else:
            model = _build_from_file(name, num_labels)
    if weights is not None:
        load_weights(model, weights)
    return model


def describe_drawn_weights(name: str) -> str:
    """Describes the weights of a model from a Python file without a file of weights.

    Returns "" for other models, which have trained weights.
    """
    if not is_own(name) or name.startswith(TIMM):
        return ""
    return f"'{name}' has the weights from its code, which are random unless the code reads a file."


@with_checked_arguments
def check_own(name: str, weights: str | Path | None) -> None:
    """Checks a model's name, file and weights without running its code, before data are read.

    Args:
        name: see `build_own`.
        weights: see `build_own`.
    Raises:
        ConfigError: if the file does not exist or does not define the name, or timm lacks it.
        UnavailableError: if timm is not installed.
        CheckpointError: if the weights do not exist, or cannot be read.
    """
    match = CODE_FILE.fullmatch(name)
    if name.startswith(TIMM):
        _import_timm(name.removeprefix(TIMM))
    elif match is not None:
        path = Path(match["file"])
        if not path.is_file():
            raise ConfigError(f"model file '{path}' does not exist.")
        if isinstance(
            top := _read_statements(path), list
        ):  # otherwise running it reports the syntax error
            kinds = ast.FunctionDef, ast.ClassDef
            _check_defines(path, top, match["name"], f"'{path}'", kinds)
    if weights is not None:
        check_readable(weights)


@with_checked_arguments
def check_is_in_file(name: str, setting: str) -> None:
    """Checks that a code file exists and defines a name, before anything runs.

    Args:
        name: `file.py:name`.
        setting: name of the setting with this value, for messages.

    Raises:
        ConfigError: if the text is not `file.py:name`, or the file or name does not exist.
    """
    match = CODE_FILE.fullmatch(name)
    if match is None:
        metric = " --metric names a metric of the task." if setting == "evaluate" else ""
        raise ConfigError(f"{setting}: expected file.py:function, got '{name}'.{metric}")
    path = Path(match["file"]).expanduser()
    if not path.is_file():
        raise ConfigError(f"{setting}: '{path}' does not exist.")
    top = _read_statements(path)
    if not isinstance(top, list):
        raise ConfigError(f"{setting}: '{path}' is not valid Python: {first_line(top)}")
    _check_defines(path, top, match["name"], f"{setting}: '{path}'", (ast.FunctionDef,))


Definition = ast.FunctionDef | ast.ClassDef


def _read_statements(path: Path) -> list[ast.stmt] | Exception:
    """Parses a file without running it; returns its statements or the reason for a failure."""
    try:
        with warnings.catch_warnings(action="ignore"):  # running it shows them
            return ast.parse(read_bytes(path, "source"), str(path)).body
    except (SyntaxError, ValueError) as error:
        return error


def _check_defines(
    path: Path, top: list[ast.stmt], name: str, file: str, kinds: tuple[type[Definition], ...]
) -> None:
    """Raises ConfigError if a file cannot define a name; does not run it.

    Args:
        path: file to check.
        top: its statements.
        name: name of the wanted class or function.
        file: the file, for the message.
        kinds: kinds of objects that the message suggests.
    """
    nodes = [node for statement in top for node in ast.walk(statement)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.name for node in top if isinstance(node, Definition)}
    names |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    if name in names or "*" in names or MAKES_NAMES.search(read_bytes(path, "source")):
        return
    own = [node.name for node in top if isinstance(node, kinds)]
    nearest = did_you_mean(name, own) if own else "it defines none."
    raise ConfigError(f"{file} has no '{name}': {nearest}")


@with_checked_arguments
def function_of_file(name: str, setting: str) -> Callable[..., Any]:
    """Returns the function of `file.py:fn`; a file that was executed already is not run again.

    Args:
        name: `file.py:fn`.
        setting: setting with this value, for messages.
    Raises:
        ConfigError: see `check_is_in_file`; also if the name comes from a file instead of the
            command (see `chop.base.trust`).
    """
    check_is_in_file(name, setting)
    match = CODE_FILE.fullmatch(name)
    assert match is not None
    path = Path(match["file"]).expanduser()
    with running(name):
        module = sys.modules.get(_title(path))
        if module is None or getattr(module, SOURCE, None) != _source(path):
            module = _run_file(path)
    function = getattr(module, match["name"], None)
    if not callable(function):
        raise ConfigError(f"{setting}: '{name}' is not a function.")
    return function  # type: ignore[no-any-return]


def _title(path: Path) -> str:
    """Returns the module name of a file."""
    return f"chop_model_{path.stem}"


def _source(path: Path) -> tuple[Path, bytes]:
    return path.resolve(), read_bytes(path, "source")


def _build_from_file(name: str, num_labels: int | None) -> nn.Module:
    match = CODE_FILE.fullmatch(name)
    assert match is not None
    path = Path(match["file"])
    module = _run_file(path)
    build = getattr(module, match["name"], None)
    if build is None:
        own = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(f"'{path}' has no '{match['name']}': {did_you_mean(match['name'], own)}")
    is_built = isinstance(build, nn.Module) or not callable(build)
    model = build if is_built else _call(build, _arguments(build, name, num_labels), name, path)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"'{name}': expected a torch.nn.Module, got {type(model).__name__}.")
    return model


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"model file '{path}' does not exist.")
    title = _title(path)
    spec = importlib.util.spec_from_file_location(title, path.absolute())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, SOURCE, _source(path))
    sys.modules[title] = module
    sys.path.insert(0, str(path.parent.absolute()))  # imports of its neighbors, as in a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[title]
        raise ConfigError(f"'{path}' cannot be run: {reason_of_user_code(error, path)}") from error
    finally:
        sys.path.pop(0)
    return module


def _call(build: Callable[..., Any], arguments: dict[str, int], name: str, path: Path) -> Any:
    try:
        return build(**arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"'{name}' cannot be built: {reason_of_user_code(error, path)}"
        ) from error


def reason_of_user_code(error: BaseException, path: Path) -> str:
    """Describes an exception of user code, with the last line in the user's files.

    Args:
        error: exception with its traceback.
        path: file of the user's code; files next to it and below count as the user's too.
    """
    folder, place, source, has_parser = path.parent.absolute(), "", "", False
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        has_parser |= file == Path(argparse.__file__)
        is_own = file.is_relative_to(folder) and not file.is_relative_to(PACKAGE)
        if is_own and "site-packages" not in file.parts:
            of = "" if file == path.absolute() else f" of '{file.relative_to(folder)}'"
            name, source = frame.f_code.co_qualname, linecache.getline(str(file), line)
            place = f"line {line}{of}{f', in {name},' if name != '<module>' else ''} raises "
    message = f": {shorten(' '.join(str(error).split()))}" if str(error) else ""
    reason = f"{place}{type(error).__name__}{message}".removesuffix(".") + "."
    return reason + (ARGUMENTS_ADVICE if has_parser or "sys.argv" in source else "")


def _arguments(build: Callable[..., Any], name: str, num_labels: int | None) -> dict[str, int]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except ValueError:  # some C functions have no signature
        return {}
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    arguments = {key: num_labels for key in needed if key in CLASSES and num_labels is not None}
    unknown = [key for key in needed if key not in arguments]
    if unknown:
        raise ConfigError(
            f"'{name}' needs {', '.join(unknown)}: name a function without arguments that builds "
            "the model."
        )
    return arguments


def _import_timm(name: str) -> ModuleType:
    """Returns the timm package, which has the model."""
    try:
        import timm
    except ImportError:
        raise UnavailableError(
            f"'{TIMM}{name}' needs the package timm: {how_to_get('timm')}."
        ) from None
    if not timm.is_model(name.split(".")[0]):
        raise ConfigError(f"timm has no model '{name}': {did_you_mean(name, timm.list_models())}")
    module: ModuleType = timm
    return module


def _build_from_timm(name: str, num_labels: int | None, pretrained: bool) -> nn.Module:
    timm = _import_timm(name)
    classes = {} if num_labels is None else {"num_classes": num_labels}
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **classes)
        return model
    except Exception as error:  # whatever the download raises: its client's errors differ
        if not pretrained:
            raise ConfigError(f"'{TIMM}{name}' cannot be built: {first_line(error)}") from error
        message = f"'{TIMM}{name}': the weights cannot be fetched ({first_line(error)})"
        raise UnavailableError(f"{message}; pass --weights FILE.") from error
