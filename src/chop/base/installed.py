"""Installed packages: versions, compatibility, and install commands."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chop.errors import ChopError, UnavailableError, first_line

__version__ = "0.1.0"
DISTRIBUTION = "mase-chop"
CLONE = Path(__file__).resolve().parents[3]
"""Folder of the clone, if chop runs from one."""
COMPILED = {"torchvision": "timm"}
"""Packages with compiled code for one release of torch -> the optional part they belong to."""


def how_to_get(extra: str = "") -> str:
    """Returns the command that installs chop or an optional part, as chop was installed here.

    The command works from any folder: for a clone it has the path of the clone.

    Args:
        extra: name of the part. "" for chop itself.
    """
    part = f"[{extra}]" if extra else ""
    if _is_checkout():
        return f"pip install -e {shlex.quote(f'{CLONE}{part}')}"
    return f"pip install '{DISTRIBUTION}{part}'" if part else f"pip install {DISTRIBUTION}"


def require(what: str, *packages: str, extra: str) -> None:
    """Raises an error if a package is not installed.

    Args:
        what: feature that requires the packages.
        packages: import names.
        extra: optional part of chop that installs them. "" for packages that chop or others
            require.

    Raises:
        UnavailableError: if one is missing; the message has the install command.
    """
    if absent := [name for name in packages if not _is_installed(name)]:
        is_ours = bool(extra) or not _needed().isdisjoint(absent)
        how = how_to_get(extra) if is_ours else f"pip install {' '.join(absent)}"
        raise UnavailableError(f"{what} needs {' and '.join(absent)}: {how}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # parent package of a submodule is missing
        return False


def _needed() -> set[str]:
    """Returns the names of chop's required packages."""
    try:
        texts = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return set()
    return {re.split(r"[^\w-]", text)[0] for text in texts if "extra ==" not in text}


def _is_checkout() -> bool:
    """Returns whether chop runs from a checkout instead of an installed copy."""
    try:
        origin = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return (CLONE / "pyproject.toml").is_file()
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))


def version(package: str) -> str | None:
    """Returns the installed version of a package, or None.

    An imported package may report its build as well: a CUDA wheel of torch is 2.13.0 for pip and
    2.13.0+cu130 for itself.
    """
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    with_build = str(getattr(sys.modules.get(package), "__version__", version))
    return with_build if with_build.startswith(f"{version}+") else version


def misfit(requirement: str) -> str | None:
    """Returns the required versions if an incompatible version is installed, else None.

    Args:
        requirement: requirement as given by `importlib.metadata.requires`.
    """
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    installed = version(wanted.name)
    if installed is None or wanted.specifier.contains(installed, prereleases=True):
        return None
    return str(wanted.specifier)


@contextmanager
def fitting_packages() -> Iterator[None]:
    """Context manager that explains import errors of packages built for another torch release.

    transformers and timm import torchvision if it is installed, and pass its errors on.

    Raises:
        UnavailableError: if a package does not fit; the message has its version and torch's.
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
