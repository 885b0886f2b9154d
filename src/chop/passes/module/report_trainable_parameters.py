"""Trainable parameters of a model, module by module."""

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
        depth: how many steps of a dotted path to unfold; None unfolds all.
        silent: prints no table.
    """

    depth: int | None = 3
    silent: bool = False


@documented(ReportConfig)
def report_trainable_parameters_analysis_pass(
    module: M, pass_args: Mapping[str, Any] | None = None
) -> tuple[M, dict[str, Any]]:
    """Prints how many parameters each submodule has and how many of them train.

    A row counts everything below its module, so rows of different depth overlap: the totals are
    those of the model, each parameter once, and not sums over the rows.

    Args:
        module: any module; of a graph, `mg.model`.
        pass_args: see `ReportConfig`.
    Returns:
        total: number of parameters.
        trainable: number of those that train.
        share: trainable out of all; 0 where there is none.
        rows: one dict per submodule that has parameters: `submodule`, `total`, `trainable` and
            `share`.

    Raises:
        ConfigError: a setting is unknown, or `module` is no module.
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
