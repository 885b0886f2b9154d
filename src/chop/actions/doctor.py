"""Requirements of `chop`: which are installed, and how to get the others."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chop.base.installed import DISTRIBUTION, how_to_get, misfit, version
from chop.base.plugins import GROUPS, OWN, described, entry_points, find_registry, unknown_groups
from chop.errors import ConfigError, did_you_mean

EXTRAS = {
    "eval": "chop evaluate --tasks",
    "place": "chop emit --place",
    "postgres": "searches by workers on several machines",
    "triton": "kernels for NVIDIA GPUs",
    "timm": "models of timm and torchvision",
    "dashboard": "looking at searches in a browser",
}
"""Uses of the optional parts, beside those of export targets; tests need others."""
CACHE, CLEANED = "cache folder", "removed"
OK, MISSING, OPTIONAL, WRONG = "ok", "missing", "not installed (optional)", "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: a package, a tool or a fact of the machine.
        state: "ok", "missing", "not installed (optional)" or "wrong".
        detail: its version, or how to get it.
    """

    what: str
    state: str
    detail: str

    @property
    def is_fatal(self) -> bool:
        """True when `chop` does not work until it is mended."""
        return self.state in (MISSING, WRONG)


def examine() -> list[Finding]:
    """Everything that matters, the fatal things first."""
    accelerator = _accelerator()  # imports torch, which then says of what build it is
    return [
        Finding("python", OK, platform.python_version()),
        _import_name(),
        *_packages(),
        *_plugins(),
        accelerator,
        _compiler(),
        _cpu_kernels(),
        *_hardware_tools(),
        _cache(),
    ]


def _plugins() -> Iterator[Finding]:
    """Extensions of other packages; those that cannot be used stop only what needs them."""
    for group, noun in GROUPS.items():
        for name, entries in entry_points(group).items():
            what = f"{noun} {name}"
            try:
                find_registry(group)[name]
            except (ConfigError, ImportError) as error:  # chop itself may lack a package
                yield Finding(what, WRONG, str(error))
            else:
                yield Finding(what, OK, " and ".join(map(described, entries)))
    for group, declaring in unknown_groups().items():
        by = " and by ".join(declaring)
        advice = did_you_mean(group, [f"{OWN}.{known}" for known in GROUPS])
        yield Finding(f"group {group}", WRONG, f"unknown, declared by {by}: {advice}")


def clean() -> Finding:
    """Removes compiled code and trained weights from the cache folder, which are made again.

    Data sets stay, and so does what was used within ten minutes, which may be in use.

    Raises:
        WriteError: there is no cache folder, and none can be made.
    """
    from chop.base.hub import cache_folder
    from chop.base.native import remove_unused

    folder = cache_folder()
    places = [folder, *(place for place in (folder / "trained",) if place.is_dir())]
    removed = map(remove_unused, places)
    count, size = (sum(numbers) for numbers in zip(*removed, strict=True))
    return Finding(CLEANED, OK, f"{count} files, {size / 1e6:,.1f} MB, of {folder}")


def _cache() -> Finding:
    from chop.base.hub import cache_folder

    try:
        folder = cache_folder()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        return Finding(CACHE, WRONG, str(error))
    return Finding(CACHE, OK, f"{folder}, {size / 1e6:,.1f} MB; chop doctor --clean empties it")


def _import_name() -> Finding:
    """Another distribution may own the import name `chop` too; then either may win."""
    owners = importlib.metadata.packages_distributions().get("chop", [])
    others = sorted(set(owners) - {DISTRIBUTION})
    here = Path(__file__).parents[1]
    if others:
        message = f"also installed by {', '.join(others)}: pip uninstall {others[0]}"
        return Finding("import chop", WRONG, message)
    # Not importlib.util.find_spec: it answers with the package that is loaded already.
    spec = importlib.machinery.PathFinder.find_spec("chop")
    found = Path(spec.origin).parent if spec and spec.origin else here
    if found != here:
        return Finding("import chop", WRONG, f"{found} shadows {here}: leave that folder")
    return Finding("import chop", OK, str(here))


def _packages() -> list[Finding]:
    """The packages that are needed, then the optional parts; each once."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding(DISTRIBUTION, MISSING, how_to_get())]
    needed = [text for text in requirements if _extra(text) is None]
    parts = [
        _part(name, use, [text for text in requirements if _extra(text) == name])
        for name, use in _optional_parts().items()
    ]
    return [*map(_package, needed), *parts]


def _optional_parts() -> dict[str, str]:
    """Returns what each optional part is for."""
    from chop.export.targets import TARGETS

    targets = TARGETS.own_rows().values()
    return {x.extra: f"chop export --to {x.name}" for x in targets if x.extra} | EXTRAS


def _extra(requirement: str) -> str | None:
    found = re.search(r"""extra == ['"]([\w-]+)""", requirement)
    return found[1] if found else None


def _package(requirement: str) -> Finding:
    name, found, wanted = _name(requirement), _version(requirement), misfit(requirement)
    if found is None:
        return Finding(name, MISSING, f"pip install '{requirement.split(';')[0].strip()}'")
    if wanted is not None:
        return Finding(name, WRONG, f"{found}, needed {wanted}: pip install '{name}{wanted}'")
    return Finding(name, OK, found)


def _part(extra: str, use: str, requirements: list[str]) -> Finding:
    versions = {_name(text): _version(text) for text in requirements}
    misfits = {_name(text): wanted for text in requirements if (wanted := misfit(text)) is not None}
    if misfits:
        found = [f"{name} {versions[name]}, needed {misfits[name]}" for name in misfits]
        return Finding(extra, WRONG, f"{', '.join(found)}: {how_to_get(extra)}")
    if versions and all(versions.values()):
        return Finding(extra, OK, ", ".join(f"{name} {found}" for name, found in versions.items()))
    return Finding(extra, OPTIONAL, f"for {use}: {how_to_get(extra)}")


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _version(requirement: str) -> str | None:
    return version(_name(requirement))


def _accelerator() -> Finding:
    import torch

    found = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return _optional("GPU", found, f"none; {torch.get_num_threads()} CPU threads")


def _compiler() -> Finding:
    from chop.base.native import compiler

    return _optional("C++ compiler", compiler(), "makes quantizing faster: apt-get install g++")


def _cpu_kernels() -> Finding:
    """Compiles them if they never were, which takes seconds."""
    from chop.kernels.cpu.build import library

    build = library()
    found = build.detail if build.library else None
    return _optional(
        "CPU kernels", found, f"same results, slower, from PyTorch alone: {build.detail}"
    )


def _hardware_tools() -> list[Finding]:
    from chop.hardware.tools import INSTALL, versions

    return [
        _optional(tool, found, f"for circuits: {INSTALL}") for tool, found in versions().items()
    ]


def _optional(what: str, found: str | None, otherwise: str) -> Finding:
    return Finding(what, OK, found) if found else Finding(what, OPTIONAL, otherwise)
