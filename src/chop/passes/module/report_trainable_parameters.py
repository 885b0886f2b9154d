"""Table of trainable parameters by submodule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from chop.base.tables import print_table
from chop.captured.wrappers import check_is_module
from chop.config import parse
from chop.ir.parameters import ParameterCount
from chop.passes.module.base import documented

M = TypeVar("M", bound=nn.Module)
NAME = "report_trainable_parameters_analysis_pass"


@dataclass(frozen=True)
class ReportConfig:
    """Settings of `report_trainable_parameters_analysis_pass`.

    Attributes:
        depth: maximum depth of dotted paths; default, all.
        silent: suppresses the table.
    """

    depth: int | None = 3
    silent: bool = False


@documented(ReportConfig)
def report_trainable_parameters_analysis_pass(
    module: M, pass_args: Mapping[str, Any] | None = None
) -> tuple[M, dict[str, Any]]:
    """Prints total and trainable parameters of each submodule.

    A row includes everything below its module, so rows of different depth overlap. The totals count
    each parameter of the model once.

    Args:
        module: any module; for a graph, `mg.model`.
        pass_args: see `ReportConfig`.
    Returns:
        total: number of parameters.
        trainable: number of trainable parameters.
        share: trainable share; 0 without parameters.
        rows: one dict per submodule that has parameters: `submodule`, `total`, `trainable` and
            `share`.

    Raises:
        ConfigError: if a setting is unknown, or `module` is not a module.
    """
    check_is_module(module, NAME)
    config = parse(ReportConfig, pass_args, NAME)
    whole = ParameterCount.of(module)
    rows = [
        _row(path, count)
        for path, submodule in module.named_modules()
        if path and (config.depth is None or path.count(".") < config.depth)
        if (count := ParameterCount.of(submodule)).total
    ]
    if not config.silent:
        print_table("Trainable parameters", [*rows, _row("(whole model)", whole)])
    info = {"total": whole.total, "trainable": whole.trainable, "share": whole.share}
    return module, {**info, "rows": rows}


def _row(path: str, count: ParameterCount) -> dict[str, Any]:
    return {
        "submodule": path,
        "total": count.total,
        "trainable": count.trainable,
        "share": count.share,
    }
