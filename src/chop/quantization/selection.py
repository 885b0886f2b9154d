"""Selection of the operators to quantize: by type, by name or by pattern, each operand's format."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import fx, nn

from chop.captured.overrides import why_not_its_class
from chop.config import convert, ignoring, without_na
from chop.errors import ConfigError, did_you_mean
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.nodes import names_of
from chop.ir.ops import OPS, Operator, of_module
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.notices import warn_once

By = Literal["type", "name", "regex_name"]
Settings = Mapping[str, Any] | QuantSpec
T = TypeVar("T")


@dataclass(frozen=True)
class QuantizeConfig:
    """Rules that choose operators, each with the formats of its operands.

    Attributes:
        by: what the keys of `rules` are: operators, node names (or module paths), or regular
            expressions that match a whole one.
        rules: the formats of what each key names: a `QuantSpec`, or the mapping that describes one.
        default: what holds for quantizable operators that no rule names; None leaves them.
        where: the pass, for messages.
    """

    by: By = "type"
    rules: Mapping[str, Settings] = field(default_factory=dict)
    default: Settings | None = None
    where: str = field(default="quantize_transform_pass", metadata={"is_setting": False})

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], where: str, ignores: Collection[str] = ()
    ) -> QuantizeConfig:
        """A flat mapping as MASE's: beside `by` and `default`, each key is one of `rules`.

        Formats are given as `{"config": {...}}`, "NA" is None, and the keys `ignores` have no
        effect.

        Raises:
            ConfigError: `by` is unknown, or an entry is not of the form `{"config": {...}}`.
        """
        # A node may be called as one of MASE's keys is.
        options = [key for key in ignores if not _is_rule(settings.get(key))]
        settings = ignoring(without_na(dict(settings)), options, where)
        by = convert(settings.get("by", cls.by), By, f"{where}.by")
        if by == "regex_name":
            _check_patterns(settings, where)
        entries = {key: entry for key, entry in settings.items() if key != "by"}
        rules = {key: _config_of(key, entry, where) for key, entry in entries.items()}
        default = rules.pop("default", None)
        if isinstance(default, Mapping) and default.get("name") is None and len(default) <= 1:
            default = None
        if not rules and default is None:
            raise ConfigError(f"{where}: nothing to quantize: name an operator.")
        return cls(by, rules, default, where)

    def select(self, mg: MaseGraph) -> dict[fx.Node, QuantSpec]:
        """The nodes to quantize, each with its spec.

        Raises:
            ConfigError: a rule matches no node, or its mapping does not fit the operator.
        """
        candidates = {node: names for node in mg.nodes if (names := self._names(mg, node))}
        places = {name for node in candidates for name in names_of(node)}
        chosen = {
            node: _spec_for(mg, node, settings, where)
            for node, (settings, where) in self.choose(candidates, places).items()
        }
        _check_shared(mg, chosen)
        return chosen

    def choose(
        self, candidates: Mapping[T, Sequence[str]], places: Collection[str] = ()
    ) -> dict[T, tuple[Settings, str]]:
        """The settings of each candidate that has some, and the rule they are from, as text.

        Args:
            candidates: what a rule can call each of them by.
            places: names of the candidates' nodes: rules by type that are called so have no
                effect, with a warning; MASE's configs have some.
        Raises:
            ConfigError: a rule matches no candidate.
        """
        unused = set(self.rules)
        chosen: dict[T, tuple[Settings, str]] = {}
        for candidate, names in candidates.items():
            matching = [key for name in names for key in self.rules if self._matches(key, name)]
            unused -= set(matching)
            rule = matching[0] if matching else "default"
            settings = self.rules[rule] if matching else self.default
            if settings is not None:
                chosen[candidate] = settings, f"{self.where}['{rule}']"
        for key in self.rules:
            if key in unused and self.by == "type" and key in places:
                warn_once(
                    f"{self.where}: '{key}' names a node, and rules are by 'type': it has no "
                    "effect, as in MASE; by 'name' it has."
                )
            elif key in unused:
                raise ConfigError(self._explain_unused(key, candidates.values()))
        return chosen

    def may_mean(self, path: str) -> bool:
        """Whether rules mean what is at a path, if it could be quantized: names mean others."""
        if self.by == "type" or self.default is not None:
            return True
        names = (path, path.replace(".", "_"))
        return any(self._matches(key, name) for key in self.rules for name in names)

    def _names(self, mg: MaseGraph, node: fx.Node) -> tuple[str, ...]:
        """What a rule can call the node by; () if the node cannot be quantized."""
        if not _is_quantizable(mg, node):
            return ()
        return (_row_of(mg, node).name,) if self.by == "type" else names_of(node)

    def _matches(self, key: str, name: str) -> bool:
        return bool(re.fullmatch(key, name)) if self.by == "regex_name" else key == name

    def _explain_unused(self, key: str, candidates: Any) -> str:
        known = {name for names in candidates for name in names}
        what = {"type": "operator", "name": "node", "regex_name": "node"}[self.by]
        text = f"{self.where}: no quantizable {what} in this model matches '{key}'"
        if self.by == "type" and key in OPS and key not in known:
            return f"{text}; it has: {', '.join(sorted(known))}."
        return f"{text}: {did_you_mean(key, known)}"


def _check_patterns(patterns: Iterable[str], where: str) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: '{pattern}' is no regular expression: {error}.") from None


def _check_shared(mg: MaseGraph, chosen: Mapping[fx.Node, QuantSpec]) -> None:
    """Raises ConfigError where two calls of one module are given different formats."""
    specs: dict[str, QuantSpec] = {}
    for node, spec in chosen.items():
        if node.op == "call_module" and specs.setdefault(str(node.target), spec) != spec:
            raise ConfigError(
                f"quantize_transform_pass: module '{node.target}' is called more than once and "
                "has one set of formats; give its calls the same."
            )


def _is_rule(entry: Any) -> bool:
    return isinstance(entry, Mapping) and set(entry) == {"config"}


def _config_of(key: str, entry: Any, where: str) -> Settings:
    if _is_rule(entry):
        entry = entry["config"]
        if isinstance(entry, Mapping | QuantSpec):
            return entry
    raise ConfigError(f"{where}['{key}']: expected {{'config': {{...}}}}, got {entry!r}.")


def check_its_class(module: nn.Module, path: str, where: str) -> None:
    """Raises ConfigError for a chosen module that a twin of its class would not replace."""
    reason = why_not_its_class(module)
    if reason is not None:
        raise ConfigError(f"{where}: module '{path}' cannot be quantized: {reason}.")


def _row_of(mg: MaseGraph, node: fx.Node) -> Operator:
    """The row of what a node calls; of a module, that of its class, whatever it computes."""
    module = mg.module_of(node)
    if module is None or isinstance(module, QuantizedOperator):
        return mg.operator(node)
    return of_module(type(module))


def _spec_for(mg: MaseGraph, node: fx.Node, settings: Settings, where: str) -> QuantSpec:
    row, module = mg.operator(node), mg.module_of(node)
    if module is not None:
        check_its_class(module, str(node.target), where)
    if row.twin is not None:
        return QuantSpec.parse(settings, row.twin.operands, row.twin.fallback, where)
    if isinstance(module, QuantCall):
        return QuantSpec.parse(settings, module.operands, row.fallback, where)
    if module is not None and row.quantized is not None:
        return QuantSpec.parse(settings, row.quantized.present_operands(module), where=where)
    positions = zip(row.arguments, node.args, strict=False)
    given = {name: value for name, value in [*positions, *node.kwargs.items()] if value is not None}
    present = [operand for name, operand in row.arguments.items() if operand and name in given]
    return QuantSpec.parse(settings, present, row.fallback, where)


def _is_quantizable(mg: MaseGraph, node: fx.Node) -> bool:
    """True for calls of reals that have a twin; arithmetic on sizes and masks is left alone."""
    row, module = _row_of(mg, node), mg.module_of(node)
    if node.op == "call_module":
        has_twin = row.quantized is not None or isinstance(module, QuantizedOperator)
    else:
        is_call = node.op in ("call_function", "call_method")
        has_twin = is_call and bool(row.arguments or row.twin)
    results = metadata_of(node).common.results.values()
    return has_twin and bool(results) and all(info.is_floating for info in results)
