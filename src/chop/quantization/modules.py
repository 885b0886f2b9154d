"""Replacement of modules by quantized ones, without a graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from torch import nn

from chop.captured.module import CapturedModule
from chop.captured.module_tree import computed_tensors
from chop.captured.overrides import why_not_copyable
from chop.errors import ConfigError
from chop.formats import QuantSpec, parse_format_string
from chop.ir.ops import Operator, get_class_row
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.computed import warn_about_plain_weights, why_computed
from chop.private.modules import own_children
from chop.quantization.selection import QuantizeConfig, Settings, check_its_class


def quantize_modules(network: nn.Module, config: QuantizeConfig) -> tuple[nn.Module, int]:
    """Returns a copy of `network` with the modules chosen by a config quantized, and their number.

    Raises:
        ConfigError: if a key matches no module, its config does not fit the operator, or a module
            does not compute the function of its class.
    """
    _check_copies(network, config.where)
    result = copy.deepcopy(network, computed_tensors(network))
    quantizable = {path: (row, module) for path, row, module in _quantizable(result, "")}
    by_module: dict[nn.Module, list[str]] = {}
    for path, (_, module) in quantizable.items():
        by_module.setdefault(module, []).append(path)
    rows = {module: row for row, module in quantizable.values()}
    names = {m: [rows[m].name] if config.by == "type" else p for m, p in by_module.items()}
    twins = {}
    ruled = config.choose(names, quantizable)
    skippable = (paths for m, paths in by_module.items() if m in ruled or rows[m].weight)
    skipped = config.skipped_paths({path for paths in skippable for path in paths})
    eligible = {module for module, paths in by_module.items() if skipped.isdisjoint(paths)}
    for module, (settings, where) in ruled.items():
        if module not in eligible:
            continue
        check_its_class(module, by_module[module][0], where)
        twins[module] = _twin(rows[module], module, settings, where)
    layers = {
        module: paths
        for module, paths in by_module.items()
        if module in eligible and rows[module].weight and config.may_override(module, twins)
    }
    for module, text in config.recipe.choose(layers, config.where).items():
        base = twins.get(module, module)
        spec = base.spec if isinstance(base, QuantizedOperator) else QuantSpec()
        check_its_class(module, by_module[module][0], config.where)
        spec = spec.with_quantizers(weight=parse_format_string(text))
        twins[module] = _twin(rows[module], base, spec, config.where)
    paths = {module: by_module[module][0] for module in twins}
    computed = {path: why_computed(module) for module, path in paths.items()}
    warn_about_plain_weights("quantize_module_transform_pass", computed)
    return _with_twins(result, twins), len(twins)


def _check_copies(network: nn.Module, where: str) -> None:
    """Raises ConfigError if a copy would call modules of the original."""
    for path, module in network.named_modules():
        reason = why_not_copyable(module)
        if reason is not None:
            name = f"module '{path}'" if path else "the model"
            raise ConfigError(f"{where}: {name} cannot be copied: {reason}.")


def _quantizable(module: nn.Module, path: str) -> Iterator[tuple[str, Operator, nn.Module]]:
    """Yields path, operator row and module of quantizable modules, for each of their paths."""
    row = get_class_row(type(module))
    if row.quantized is not None:
        yield path, row, module
    elif not isinstance(module, nn.MultiheadAttention | QuantizedOperator):
        for name, child in own_children(module).items():
            if child is not None:
                yield from _quantizable(child, f"{path}.{name}" if path else name)


def _twin(row: Operator, module: nn.Module, settings: Settings, where: str) -> QuantizedOperator:
    assert row.quantized is not None
    spec = QuantSpec.parse(settings, row.quantized.present_operands(module), where=where)
    if isinstance(module, QuantizedOperator):
        return module.with_spec(spec)
    return row.quantized.from_float(module, spec)


def _with_twins(root: nn.Module, twins: Mapping[nn.Module, QuantizedOperator]) -> nn.Module:
    for parent in list(root.modules()):
        for name, child in own_children(parent).items():
            if child is not None and child in twins:
                own_children(parent)[name] = twins[child]
        if isinstance(parent, nn.TransformerEncoderLayer):
            # In evaluation its fast path would read weights without calling their modules.
            parent.activation_relu_or_gelu = 0
    if isinstance(root, CapturedModule):
        # Notes on formats would be those of the float model, and belong to it.
        for node in root.graph.nodes:
            node.meta.pop("mase", None)
    return twins.get(root, root)
