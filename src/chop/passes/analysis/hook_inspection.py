"""Inspection of modules: hooks, masks and activation pruners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph
from chop.nn.sparsity import PruneActivation, get_sparsity
from chop.passes.base import graph_pass
from chop.private.modules import HOOKS_BY_KIND


@dataclass(frozen=True)
class HookConfig:
    """Settings of `hook_inspection_analysis_pass`.

    Attributes:
        quiet: suppresses the table.
    """

    quiet: bool = False


@graph_pass(config=HookConfig)
def hook_inspection_analysis_pass(mg: MaseGraph, config: HookConfig) -> dict[str, Any]:
    """Lists modules with hooks, parametrizations, masks or activation pruners.

    Returns:
        modules: for each module path a mapping with its `class`; the function names in
            `forward_pre`, `forward`, `backward_pre` and `backward`; its `parametrizations`; and the
            sparsity of its `mask` and `pruner`, or None.
    """
    attached = {path: _attached(module) for path, module in mg.model.named_modules()}
    modules = {
        path: {"class": type(mg.model.get_submodule(path)).__name__, **attachments}
        for path, attachments in attached.items()
        if any(value not in ([], None) for value in attachments.values())
    }
    if not config.quiet:
        rows = [{"module": path, **_as_text(attachments)} for path, attachments in modules.items()]
        print_table("Hooks, masks and pruners", rows)
    return {"modules": modules}


def _attached(module: nn.Module) -> dict[str, Any]:
    hooks = {
        name: [_name(hook) for hook in vars(module)[attribute].values()]
        for name, attribute in HOOKS_BY_KIND.items()
    }
    computed = list(module.parametrizations) if is_parametrized(module) else []  # type: ignore[arg-type]
    return {
        **hooks,
        "parametrizations": computed,
        "mask": get_sparsity(module),
        "pruner": module.sparsity if isinstance(module, PruneActivation) else None,
    }


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def _as_text(attachments: dict[str, Any]) -> dict[str, str]:
    return {name: _format(value) for name, value in attachments.items()}


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.1%}" if isinstance(value, float) else value or ""
