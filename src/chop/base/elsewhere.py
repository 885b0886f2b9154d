"""Advice for names that a package of `chop` lacks: the nearest, or where another has it."""

from __future__ import annotations

import ast
import sys
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, NoReturn

from chop.base.files.reading import read_text
from chop.errors import ConfigError, did_you_mean

PARTNERS = {
    "Workload": "chop.workloads.workload.Workload",
    "calibrate": "chop.passes.calibrate_transform_pass",
    "from_checkpoint": "chop.MaseGraph.from_checkpoint",
    "load": "chop.MaseGraph.from_checkpoint",
    "pack": "chop.passes.pack_transform_pass",
    "prune": "chop.passes.prune_transform_pass",
}
"""Name that is looked for -> what does the same under another name."""
SURE = 0.8
"""Least similarity of a name in another package."""


def explain_missing(fullname: str) -> str:
    """Returns a sentence about a name that a package lacks, with the nearest that exists.

    >>> explain_missing("chop.fit")
    "module 'chop' has no attribute 'fit'; use chop.train.fit"
    >>> explain_missing("chop.base.file")
    "module 'chop.base' has no attribute 'file': did you mean 'files'?"
    """
    package, _, name = fullname.rpartition(".")
    message = f"module '{package}' has no attribute '{name}'"
    if name.startswith("_"):  # libraries look for such names in every module
        return message
    module, known = sys.modules[package], _homes()
    own = {x for x in dir(module) if not x.startswith("_")}
    own |= {each.name for each in iter_modules(module.__path__)}
    hint = did_you_mean(name, own)
    is_known = name in PARTNERS or known.get(name, "").startswith(f"{package}.")
    if hint.startswith("did you mean") and not is_known:
        return f"{message}: {hint}"
    near = [name] if name in known else get_close_matches(name, known, n=1, cutoff=SURE)
    return message + (f"; use {known[near[0]]}" if near else "")


@cache
def _homes() -> dict[str, str]:
    """Returns the public names of all packages -> their full names.

    Names are read from `__all__` in the files, because imports would take seconds.
    """
    root = Path(__file__).parents[1]
    homes = dict(PARTNERS)
    for file in sorted(root.rglob("__init__.py"), key=lambda file: (len(file.parts), file)):
        package = ".".join(("chop", *file.parent.relative_to(root).parts))
        for name in _public_names(read_text(file, "source")):
            homes.setdefault(name, f"{package}.{name}")
    return homes


def refuse_calls(package: str, advice: str) -> None:
    """Makes a call of a package, such as `chop.export(model)`, raise ConfigError with advice."""

    class Package(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Raises ConfigError."""
            raise ConfigError(f"{package} is a package, which cannot be called; use {advice}.")

    sys.modules[package].__class__ = Package


def _public_names(text: str) -> list[str]:
    """Returns the value of `__all__` in the text of a module; empty if it is not a literal."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return []
    return []
