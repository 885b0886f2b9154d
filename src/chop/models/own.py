"""Models from elsewhere: a class in a file of the user's, and those of timm."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.errors import ConfigError, UnavailableError, did_you_mean, first_line, shorten
from chop.files.reading import read_text
from chop.installed import how_to_get
from chop.models.weights import check_readable, load_weights
from chop.trust import OF_FILE, TIMM, names_code, running

if TYPE_CHECKING:
    from types import ModuleType

CLASSES = ("num_classes", "num_labels")
"""Arguments that a model's class may need, and the data tell."""


def is_own(name: str) -> bool:
    """True for `file.py:Net` and `timm:NAME`, which take their weights from a file."""
    return names_code(name)


def build_own(
    name: str, num_labels: int | None, weights: str | Path | None, pretrained: bool
) -> nn.Module:
    """The model that `is_own` says yes to.

    Args:
        name: `file.py:Net`: the file is run, and its class or function `Net` is called without
            arguments, or with the number of classes where it needs one. Or `timm:NAME`.
        num_labels: classes of the data.
        weights: a state dict as .safetensors, or .pt that holds tensors alone; None takes what the
            class draws, or timm's.
        pretrained: False draws timm's weights.
    Raises:
        ConfigError: there is no such file, name or model, it cannot be built like that, or a file
            names it and the command does not (see `chop.trust`).
        CheckpointError: weights that cannot be read or are another model's.
        UnavailableError: timm or its weights are not there.
    """
    with running(name):
        if name.startswith(TIMM):
            model = _of_timm(name.removeprefix(TIMM), num_labels, pretrained and weights is None)
        else:
            model = _of_file(name, num_labels)
    if weights is not None:
        load_weights(model, weights)
    return model


def check_own(name: str, weights: str | Path | None) -> None:
    """Checks what can be known of such a model without running code, before data are read.

    Args:
        name: see `build_own`.
        weights: likewise.
    Raises:
        ConfigError: there is no such file, or it does not have the name.
        CheckpointError: there are no such weights, or they cannot be read.
    """
    found = OF_FILE.fullmatch(name)
    if found is not None and not name.startswith(TIMM):
        path, wanted = Path(found["file"]), found["name"]
        if not path.is_file():
            raise ConfigError(f"model file '{path}' does not exist.")
        source = read_text(path, "source", errors="replace")
        makes_names = re.search(r"import \*|__getattr__|globals\(\)|setattr|exec\(", source)
        if not makes_names and not re.search(rf"\b{wanted}\b", source):
            own = re.findall(r"^(?:class|def)\s+(\w+)", source, re.MULTILINE)
            raise ConfigError(f"'{path}' has no '{wanted}': {did_you_mean(wanted, own)}")
    if weights is not None:
        check_readable(weights)


def _of_file(name: str, num_labels: int | None) -> nn.Module:
    found = OF_FILE.fullmatch(name)
    assert found is not None
    path = Path(found["file"])
    module = _run_file(path)
    build = getattr(module, found["name"], None)
    if build is None:
        own = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(f"'{path}' has no '{found['name']}': {did_you_mean(found['name'], own)}")
    is_built = isinstance(build, nn.Module) or not callable(build)
    model = build if is_built else _call(build, _arguments(build, name, num_labels), name, path)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"'{name}': expected a torch.nn.Module, got {type(model).__name__}.")
    return model


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"model file '{path}' does not exist.")
    title = f"chop_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(title, path.absolute())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    sys.path.insert(0, str(path.parent.absolute()))  # its neighbors, as when it is run itself
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
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
    """What user code raised, and the last line of the user's files on the way there."""
    folder, place = path.parent.absolute(), ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(folder) and "site-packages" not in file.parts:
            of = "" if file == path.absolute() else f" of '{file.relative_to(folder)}'"
            name = frame.f_code.co_qualname
            place = f"line {line}{of}{f', in {name},' if name != '<module>' else ''} raises "
    said = f": {shorten(' '.join(str(error).split()))}" if str(error) else ""
    return f"{place}{type(error).__name__}{said}".removesuffix(".") + "."


def _arguments(build: Callable[..., Any], name: str, num_labels: int | None) -> dict[str, int]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except ValueError:  # some of those written in C have none
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


def _of_timm(name: str, num_labels: int | None, pretrained: bool) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise UnavailableError(
            f"'{TIMM}{name}' needs the package timm: {how_to_get('timm')}."
        ) from None
    if not timm.is_model(name.split(".")[0]):
        raise ConfigError(f"timm has no model '{name}': {did_you_mean(name, timm.list_models())}")
    classes = {} if num_labels is None else {"num_classes": num_labels}
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **classes)
        return model
    except Exception as error:  # whatever the download raises: its client's errors differ
        if not pretrained:
            raise ConfigError(f"'{TIMM}{name}' cannot be built: {first_line(error)}") from error
        message = f"'{TIMM}{name}': the weights cannot be fetched ({first_line(error)})"
        raise UnavailableError(f"{message}; give --weights FILE.") from error
