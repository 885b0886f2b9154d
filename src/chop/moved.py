"""Names that have moved: importable by their old path, each with a `DeprecationWarning`.

Tables of the names that README, docs and tutorials of version 0.1 showed.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MODULES: dict[str, str] = {
    "chop.actions.rounding": "chop.actions.ptq",
    "chop.actions.search.format_settings": "chop.actions.settings.search",
    "chop.actions.subject": "chop.actions.workload",
    "chop.actions.sweep.journal": "chop.runs.journal",
    "chop.ir.capture": "chop.capture",
    "chop.ir.capture.inputs": "chop.capture.inputs",
    "chop.ir.capture.tracer": "chop.capture.tracer",
    "chop.search.architecture": "chop.nas.architecture",
    "chop.search.compression": "chop.nas.compression",
    "chop.search.latency": "chop.mixed_precision.latency",
    "chop.search.precision": "chop.mixed_precision.problem",
    "chop.search.proxies": "chop.nas.proxies",
    "chop.search.training": "chop.nas.training",
    "chop.search.choosers": "chop.search.registry",
    "chop.search.evaluation": "chop.train.evaluator",
    "chop.bench.attention_ways": "chop.studies.attention_implementations",
    "chop.bench.weight_memory": "chop.studies.weight_memory",
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
    "chop.actions.search.format_settings.spread_evenly": "chop.train.rows.Rows.spread",
    "chop.nn.quantized.running.Running": "chop.nn.quantized.running.RunningMaximum",
    "chop.bench.record.spelt_ratio": "chop.bench.record.format_ratio",
    "chop.bench.record.spelt_seconds": "chop.bench.record.format_seconds",
    "chop.formats.scaling.GivenScale": "chop.formats.scaling.ConstantScale",
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
        import warnings
        from pkgutil import resolve_name

        found = resolve_name(new)
        home, _, own = new.rpartition(".")

        message = f"'{old}' has moved: import {own} from {home}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found

    return __getattr__


def fill(module: ModuleType) -> None:
    """Gives a module at an old path the names of the module that it is now, none of them loaded."""
    path = module.__name__
    find = moved_names(path)

    def __getattr__(name: str) -> Any:  # noqa: N807 (Python's hook of modules)
        if name != "__all__":
            return find(name)
        home = importlib.import_module(MODULES[path])
        return getattr(home, "__all__", [n for n in vars(home) if not n.startswith("_")])

    module.__doc__ = f"Moved to `{MODULES[path]}`."
    vars(module)["__getattr__"] = __getattr__
