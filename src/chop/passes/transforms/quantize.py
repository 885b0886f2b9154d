"""Quantises operators: chosen by type, by name or by pattern, each operand in its own format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from chop.config import convert
from chop.errors import ConfigError, did_you_mean
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.ops import OPS, PRODUCT, Operator
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.passes.analysis.add_common_metadata import record_formats
from chop.passes.base import graph_pass

By = Literal["type", "name", "regex_name"]


@dataclass(frozen=True)
class QuantizeConfig:
    """Settings of `quantize_transform_pass`.

    Attributes:
        by: what the keys of `rules` are: operators, node names (or module paths), or regular
            expressions that match a whole one.
        rules: a spec, or the mapping that describes one, for each key.
        default: what holds for quantisable operators that no rule names; None leaves them.
    """

    by: By
    rules: Mapping[str, Mapping[str, Any] | QuantSpec]
    default: Mapping[str, Any] | QuantSpec | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> QuantizeConfig:
        """From MASE's mapping: `{"by": ..., "default": {"config": ...}, key: {"config": ...}}`.

        Raises:
            ConfigError: `by` is unknown, or an entry is not of the form `{"config": {...}}`.
        """
        by = convert(settings.get("by", "type"), By, "quantize_transform_pass.by")
        rules = {key: _config_of(key, entry) for key, entry in settings.items() if key != "by"}
        default = rules.pop("default", None)
        if isinstance(default, Mapping) and default.get("name") is None and len(default) <= 1:
            default = None
        if not rules and default is None:
            raise ConfigError("quantize_transform_pass: nothing to quantise: name an operator.")
        return cls(by, rules, default)

    def select(self, mg: MaseGraph) -> dict[fx.Node, QuantSpec]:
        """The nodes to quantise, each with its spec.

        Raises:
            ConfigError: a rule matches no node, or its mapping does not fit the operator.
        """
        candidates = {node: names for node in mg.nodes if (names := self._names(mg, node))}
        unused = set(self.rules)
        chosen: dict[fx.Node, QuantSpec] = {}
        for node, names in candidates.items():
            rule = next((key for key in self.rules if self._matches(key, names)), None)
            unused.discard(rule or "")
            settings = self.default if rule is None else self.rules[rule]
            if settings is not None:
                chosen[node] = _spec_for(mg, node, settings, rule or "default")
        for key in self.rules:
            if key in unused:
                raise ConfigError(self._explain_unused(key, candidates.values()))
        return chosen

    def _names(self, mg: MaseGraph, node: fx.Node) -> tuple[str, ...]:
        """What a rule can call the node by; () if the node cannot be quantised."""
        if not _is_quantizable(mg, node):
            return ()
        return (mg.operator(node).name,) if self.by == "type" else (node.name, str(node.target))

    def _matches(self, key: str, names: tuple[str, ...]) -> bool:
        if self.by == "regex_name":
            return any(re.fullmatch(key, name) for name in names)
        return key in names

    def _explain_unused(self, key: str, candidates: Any) -> str:
        known = {name for names in candidates for name in names}
        what = {"type": "operator", "name": "node", "regex_name": "node"}[self.by]
        text = f"quantize_transform_pass: no quantisable {what} in this graph matches '{key}'"
        if self.by == "type" and key in OPS and key not in known:
            return f"{text}; it has: {', '.join(sorted(known))}."
        return f"{text}: {did_you_mean(key, known)}"


@graph_pass(
    config=QuantizeConfig.from_settings,
    requires=("add_common_metadata_analysis_pass",),
)
def quantize_transform_pass(mg: MaseGraph, config: QuantizeConfig) -> dict[str, Any]:
    """Replaces each selected operator by its quantised twin.

    Parameters, buffers, hooks, device and dtype stay; `state_dict` keys too. A node that is
    quantised already takes on the new formats.

    Returns: `{"quantized": number of nodes}`.

    Example config::

        {"by": "type", "linear": {"config": {"name": "integer", "data_in_width": 8, ...}}}
    """
    chosen = config.select(mg)
    twins: dict[str, QuantizedOperator] = {}
    for node, spec in chosen.items():
        # A module that several nodes call is replaced once.
        twin = twins.get(str(node.target)) if node.op == "call_module" else None
        twin = twin or quantized_twin(mg, node, spec)
        mg.replace(node, twin)
        twins[str(node.target)] = twin
        record_formats(node, twin)
    return {"quantized": len(chosen)}


def quantized_twin(mg: MaseGraph, node: fx.Node, spec: QuantSpec) -> QuantizedOperator:
    """The quantised module for what a node calls."""
    row, module = mg.operator(node), mg.module_of(node)
    if isinstance(module, QuantCall):
        return QuantCall(module.function, module.argument_operands, spec)
    if module is not None and row.quantized is not None:
        return row.quantized.from_float(module, spec)
    if row.twin is not None:
        return row.twin(config=spec)
    function = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
    _first_argument_by_position(node)
    return QuantCall(function, row.operands, spec)  # type: ignore[arg-type]


def _first_argument_by_position(node: fx.Node) -> None:
    """`F.relu(input=x)` becomes `F.relu(x)`: a quantised call tells operands by position."""
    if not node.args:
        name, value = next(iter(node.kwargs.items()))
        node.args = (value,)
        node.kwargs = {key: item for key, item in node.kwargs.items() if key != name}


def _config_of(key: str, entry: Any) -> Mapping[str, Any] | QuantSpec:
    if isinstance(entry, Mapping) and set(entry) == {"config"}:
        entry = entry["config"]
        if isinstance(entry, Mapping | QuantSpec):
            return entry
    raise ConfigError(
        f"quantize_transform_pass['{key}']: expected {{'config': {{...}}}}, got {entry!r}."
    )


def _spec_for(
    mg: MaseGraph, node: fx.Node, settings: Mapping[str, Any] | QuantSpec, rule: str
) -> QuantSpec:
    row, module = mg.operator(node), mg.module_of(node)
    where = f"quantize_transform_pass['{rule}']"
    if module is not None and row.quantized is not None:
        has = [
            operand
            for operand in row.quantized.operands
            if operand == "data_in" or getattr(module, operand, None) is not None
        ]
        return QuantSpec.parse(settings, has, row.quantized.fallback, where)
    if row.twin is not None:
        return row.twin.parse_spec(settings, where)
    arguments = zip(row.operands, node.args, strict=False)
    has = [operand for operand, value in arguments if operand and value is not None]
    # Only in a product of two activations is the "weight" just a second input.
    fallback = QuantCall.fallback if row.operands == PRODUCT else None
    return QuantSpec.parse(settings, has, fallback, where)


def _is_quantizable(mg: MaseGraph, node: fx.Node) -> bool:
    row = mg.operator(node)
    return _has_twin(mg, node, row) and _gives_floats(node)


def _has_twin(mg: MaseGraph, node: fx.Node, row: Operator) -> bool:
    if node.op == "call_module":
        return row.quantized is not None or isinstance(mg.module_of(node), QuantizedOperator)
    return node.op in ("call_function", "call_method") and bool(row.operands or row.twin)


def _gives_floats(node: fx.Node) -> bool:
    """False for arithmetic on sizes and masks."""
    results = metadata_of(node).common.results.values()
    return bool(results) and all(info.is_floating for info in results)
