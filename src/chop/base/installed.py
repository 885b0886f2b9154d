"""Installed packages: chop's version, whether others fit, and how to get them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chop.errors import ChopError, UnavailableError, first_line

__version__ = "0.1.0"
DISTRIBUTION = "mase-chop"
COMPILED = {"torchvision": "timm"}
"""Packages whose compiled code fits one release of torch alone, and the part that they are of."""


def how_to_get(extra: str = "") -> str:
    """The command that installs chop, or an optional part of it, as chop was installed here.

    Args:
        extra: the part's name; "" is chop alone.
    """
    part = f"[{extra}]" if extra else ""
    if _is_checkout():
        return f"pip install -e '.{part}'" if part else "pip install -e ."
    return f"pip install '{DISTRIBUTION}{part}'" if part else f"pip install {DISTRIBUTION}"


def require(what: str, *packages: str, extra: str) -> None:
    """Raises an error where a package is not installed.

    Args:
        what: needs them.
        packages: as they are imported.
        extra: the optional part of chop that installs them; "" where no part does, as chop needs
            them anyway or other packages need them.

    Raises:
        UnavailableError: with the command that installs them.
    """
    if absent := [name for name in packages if not _is_found(name)]:
        is_ours = bool(extra) or not _needed().isdisjoint(absent)
        how = how_to_get(extra) if is_ours else f"pip install {' '.join(absent)}"
        raise UnavailableError(f"{what} needs {' and '.join(absent)}: {how}")


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package of a submodule
        return False


def _needed() -> set[str]:
    """Returns names of the packages that chop needs anyway."""
    try:
        texts = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return set()
    return {re.split(r"[^\w-]", text)[0] for text in texts if "extra ==" not in text}


def _is_checkout() -> bool:
    """Whether chop is the code of a checkout, not a copy that pip has made."""
    try:
        origin = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return (Path(__file__).parents[3] / "pyproject.toml").is_file()
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))


def version(package: str) -> str | None:
    """The installed version of a package; None where there is none.

    A package that is imported may name its build as well: wheels of torch for CUDA from PyPI are
    2.13.0 to pip and 2.13.0+cu130 to themselves.
    """
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    with_build = str(getattr(sys.modules.get(package), "__version__", version))
    return with_build if with_build.startswith(f"{version}+") else version


def misfit(requirement: str) -> str | None:
    """Which versions are wanted, where another one is installed; None where one fits or none is.

    Args:
        requirement: as `importlib.metadata.requires` gives it.
    """
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    found = version(wanted.name)
    if found is None or wanted.specifier.contains(found, prereleases=True):
        return None
    return str(wanted.specifier)


@contextmanager
def fitting_packages() -> Iterator[None]:
    """Inside, an import that fails in a package of another torch is one sentence.

    transformers and timm import torchvision where it is installed, and raise what it raises.

    Raises:
        UnavailableError: names the package, its version and torch's.
    """
    try:
        yield
    except ChopError:
        raise
    except Exception as error:
        message = _misfit_message(error)
        if message is None:
            raise
        raise UnavailableError(message) from error


def _misfit_message(error: BaseException | None) -> str | None:
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if package in COMPILED and package not in sys.modules:  # its import has failed
                return (
                    f"{package} {version(package) or ''} cannot be imported ({first_line(error)}): "
                    f"it does not fit torch {version('torch')}. {how_to_get(COMPILED[package])} "
                    f"gets one that does; pip uninstall {package} also helps."
                )
        error = error.__cause__ or error.__context__
    return None
