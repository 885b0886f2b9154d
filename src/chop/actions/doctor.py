"""Check of the installation: installed requirements, and how to get missing ones."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import math
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chop.base.installed import DISTRIBUTION, how_to_get, misfit, version
from chop.base.plugins import GROUPS, OWN, described, entry_points, find_registry, unknown_groups
from chop.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from chop.kernels.cpu.crossovers import Crossover

EXTRAS = {
    "eval": "chop evaluate --tasks",
    "place": "chop emit --place",
    "slang": "a third check of emitted circuits",
    "postgres": "searches by workers on several machines",
    "triton": "kernels for NVIDIA GPUs",
    "timm": "timm and torchvision models",
    "dashboard": "browsing searches in Optuna's dashboard",
}
"""Uses of optional parts, in addition to those of export targets."""
PROGRAMS = {"place": "nextpnr-ecp5"}
"""Programs of the system that replace an optional part."""
CACHE, CLEANED = "cache folder", "removed"
OK, MISSING, OPTIONAL, WRONG = "ok", "missing", "not installed (optional)", "wrong"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

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
        """True if `chop` does not work without a fix."""
        return self.state in (MISSING, WRONG)


def examine() -> list[Finding]:
    """Returns the results of all checks."""
    accelerator = _accelerator()  # imports torch, so that later checks can see its build
    return [
        Finding("python", OK, platform.python_version()),
        _import_name(),
        *_packages(),
        *_plugins(),
        accelerator,
        _compiler(),
        _cpu_kernels(),
        _instructions(),
        *_products(),
        *_hardware_tools(),
        _cache(),
    ]


def _plugins() -> Iterator[Finding]:
    """Yields extensions of other packages; a broken one affects only what uses it."""
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
    """Removes compiled code and trained weights from the cache folder.

    Data sets stay, and so do files used within the last ten minutes.

    Raises:
        WriteError: if there is no cache folder, and none can be created.
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
    """Checks for another distribution with the import name `chop`, which might win."""
    owners = importlib.metadata.packages_distributions().get("chop", [])
    others = sorted(set(owners) - {DISTRIBUTION})
    here = Path(__file__).parents[1]
    if others:
        message = f"also installed by {', '.join(others)}: pip uninstall {others[0]}"
        return Finding("import chop", WRONG, message)
    # Not importlib.util.find_spec, which returns the package that is already loaded.
    spec = importlib.machinery.PathFinder.find_spec("chop")
    imported = Path(spec.origin).parent if spec and spec.origin else here
    if imported != here:
        return Finding("import chop", WRONG, f"{imported} shadows {here}: leave that folder")
    return Finding("import chop", OK, str(here))


def _packages() -> list[Finding]:
    """Returns the required packages, then the optional parts."""
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
    """Returns the use of each optional part."""
    from chop.export.targets import TARGETS

    targets = TARGETS.own_rows().values()
    return {x.extra: f"chop export --to {x.name}" for x in targets if x.extra} | EXTRAS


def _extra(requirement: str) -> str | None:
    match = re.search(r"""extra == ['"]([\w-]+)""", requirement)
    return match[1] if match else None


def _package(requirement: str) -> Finding:
    name, current, wanted = _name(requirement), _version(requirement), misfit(requirement)
    if current is None:
        return Finding(name, MISSING, f"pip install '{requirement.split(';')[0].strip()}'")
    if wanted is not None:
        return Finding(name, WRONG, f"{current}, needed {wanted}: pip install '{name}{wanted}'")
    return Finding(name, OK, current)


def _part(extra: str, use: str, requirements: list[str]) -> Finding:
    versions = {_name(text): _version(text) for text in requirements}
    misfits = {_name(text): wanted for text in requirements if (wanted := misfit(text)) is not None}
    if misfits:
        texts = [f"{name} {versions[name]}, needed {misfits[name]}" for name in misfits]
        return Finding(extra, WRONG, f"{', '.join(texts)}: {how_to_get(extra)}")
    if versions and all(versions.values()):
        return Finding(extra, OK, ", ".join(f"{name} {each}" for name, each in versions.items()))
    path = shutil.which(PROGRAMS.get(extra, ""))
    return (
        Finding(extra, OK, path)
        if path
        else Finding(extra, OPTIONAL, f"for {use}: {how_to_get(extra)}")
    )


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _version(requirement: str) -> str | None:
    return version(_name(requirement))


def _accelerator() -> Finding:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return _optional("GPU", name, f"none; {torch.get_num_threads()} CPU threads")


def _compiler() -> Finding:
    from chop.base.native import compiler

    return _optional("C++ compiler", compiler(), "makes quantization faster: apt-get install g++")


def _cpu_kernels() -> Finding:
    """Checks the CPU kernels; compiles them first if needed, which takes seconds to minutes."""
    from chop.base.native import compiler
    from chop.kernels.cpu.build import is_ready, library
    from chop.report.report import announce

    if compiler() and not is_ready():
        announce("CPU kernels", "compiling them, once for this machine; this may take minutes")
    build = library()
    detail = build.detail if build.library else None
    return _optional(
        "CPU kernels", detail, f"PyTorch gives the same results more slowly: {build.detail}"
    )


def tune() -> None:
    """Measures again which implementation of packed products is faster."""
    from chop.kernels.cpu.crossovers import measure_all

    _crossovers()
    measure_all()


def _instructions() -> Finding:
    """Reports the instructions for fast products, which virtual processors may lack."""
    from chop.kernels.cpu.build import product_instructions

    known = product_instructions()
    present = ", ".join(name for name, is_there in known.items() if is_there)
    absent = ", ".join(name for name, is_there in known.items() if not is_there)
    detail = f"{present or 'none'}; absent: {absent}" if absent else present
    return Finding("product instructions", OK, detail)


def _crossovers() -> Iterable[Crossover]:
    """Returns the kinds of products, which their modules register."""
    import chop.kernels.cpu.packed  # noqa: F401
    from chop.kernels.cpu.crossovers import CROSSOVERS

    return CROSSOVERS.values()


def _products() -> Iterator[Finding]:
    """Yields from how many rows PyTorch is faster than CPU kernels, for each kind of product."""
    for each in _crossovers():
        try:
            yield _product(each)
        except ConfigError as error:  # another package defines one of the formats that are timed
            yield Finding(each.name, WRONG, str(error))


def _product(each: Crossover) -> Finding:
    import torch

    from chop.kernels.cpu.build import library

    if library().library is None:
        why = "PyTorch in float32, because there are no CPU kernels"
        return Finding(each.name, OPTIONAL, why)
    if not each.is_supported():
        return Finding(each.name, OK, f"CPU kernels; {each.why_unsupported}")
    table = each.stored_table(torch.get_num_threads())
    if table is None:
        detail = f"CPU kernels; {each.rival} not measured yet: chop doctor --tune"
        return Finding(each.name, OK, detail)
    rows = [f"{i} x {o}: {_from(table[i * o])}" for o, i in each.shapes]
    detail = f"{each.rival} for {', '.join(rows)}; otherwise CPU kernels"
    return Finding(each.name, OK, detail)


def _from(rows: float) -> str:
    return "never" if math.isinf(rows) else f"{rows:.0f} rows and more"


def _hardware_tools() -> list[Finding]:
    from chop.hardware.tools import INSTALL, versions

    return [_optional(tool, each, f"for circuits: {INSTALL}") for tool, each in versions().items()]


def _optional(what: str, detail: str | None, otherwise: str) -> Finding:
    return Finding(what, OK, detail) if detail else Finding(what, OPTIONAL, otherwise)
