"""Names that have moved: importable by their old path, each with a `DeprecationWarning`.

Tables of the names that README, docs and tutorials of version 0.1 showed.
"""

from __future__ import annotations

import importlib

from chop.virtual import add_modules

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MODULES: dict[str, str] = {
    "chop.actions.subject": "chop.actions.workload",
    "chop.search.architecture": "chop.nas.architecture",
    "chop.search.compression": "chop.nas.compression",
    "chop.search.latency": "chop.mixed_precision.latency",
    "chop.search.precision": "chop.mixed_precision.problem",
    "chop.search.proxies": "chop.nas.proxies",
    "chop.search.training": "chop.nas.training",
    "chop.bench.attention": "chop.studies.attention",
    "chop.bench.compile": "chop.studies.compile",
    "chop.bench.dequantize": "chop.studies.dequantize",
    "chop.bench.softmax": "chop.studies.softmax",
}
"""Module of version 0.1 -> its path now."""
NAMES: dict[str, str] = {
    "chop.actions.subject.Subject": "chop.actions.workload.Workload",
    "chop.actions.subject.SubjectConfig": "chop.actions.workload.WorkloadConfig",
    "chop.actions.subject.load_subject": "chop.actions.workload.load_workload",
    "chop.search.PrecisionProblem": "chop.mixed_precision.PrecisionProblem",
    "chop.search.Tried": "chop.search.TrialRecord",
    "chop.search.sensitivity": "chop.mixed_precision.sensitivity",
}
"""Name of version 0.1 -> its path now, where the module stayed or the name changed."""


def moved_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that names have left.

    Args:
        module: its dotted path.
    Returns: a function of a name: what it is now, with a `DeprecationWarning`.
    Raises:
        AttributeError: the name was never there.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 (Python's hook of modules)
        old = f"{module}.{name}"
        new = NAMES.get(old)
        if new is None and module in MODULES and not name.startswith("__"):
            new = f"{MODULES[module]}.{name}"
        if new is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        home, _, own = new.rpartition(".")
        found = getattr(importlib.import_module(home), own)
        import warnings

        message = f"'{old}' has moved: import {own} from {home}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found

    return __getattr__


def _fill(module: ModuleType) -> None:
    module.__doc__ = f"Moved to `{MODULES[module.__name__]}`."
    vars(module)["__getattr__"] = moved_names(module.__name__)


def install_moved_modules() -> None:
    """Makes the old paths importable."""
    add_modules(MODULES, _fill)
