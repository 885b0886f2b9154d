"""Selection of operators to quantize by type, name or pattern, with formats per operand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import fx, nn

from chop.base.notices import warn_once
from chop.captured.overrides import why_not_its_class
from chop.config import convert, ignoring, without_na
from chop.errors import ConfigError, describe, did_you_mean
from chop.formats import NumberFormat, QuantSpec, parse_format_string
from chop.formats.recipe import PREFIX, Recipe, check_pattern, match_paths, nearest
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.nodes import list_names
from chop.ir.ops import OPS, Operator, get_class_row
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.quantization.masked_nodes import mask_arithmetic

By = Literal["type", "name", "regex_name"]
Settings = Mapping[str, Any] | QuantSpec | NumberFormat
RECIPE = ("overrides", "skip")
T = TypeVar("T")


@dataclass(frozen=True)
class QuantizeConfig:
    """Rules that choose operators and the formats of their operands.

    Attributes:
        by: kind of the keys of `rules`: operators; names of nodes or patterns of module paths (see
            `chop.formats.recipe`); or regular expressions that match a whole name or path.
        rules: formats by key: a `QuantSpec`, a mapping that describes one, or one format for all
            operands.
        default: formats of quantizable operators without a rule; None skips them.
        recipe: `overrides`, weight formats by pattern for operators that the rules choose, or for
            any without rules; and `skip`, patterns of skipped modules.
        where: the pass, for messages.
    """

    by: By = "type"
    rules: Mapping[str, Settings] = field(default_factory=dict)
    default: Settings | None = None
    recipe: Recipe = field(default_factory=Recipe)
    where: str = field(default="quantize_transform_pass", metadata={"is_setting": False})

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], where: str, ignores: Collection[str] = ()
    ) -> QuantizeConfig:
        """Builds a config from a flat mapping as in MASE.

        Each key is a rule, except `by`, `default`, and `overrides` and `skip` of the recipe.
        Formats are given as `{"config": {...}}`, "NA" is None, and the keys in `ignores` have no
        effect.

        Raises:
            ConfigError: if `by` is unknown, or an entry does not have the form `{"config": {...}}`.
        """
        # A node may be called as one of MASE's keys is.
        options = [key for key in ignores if not _is_rule(settings.get(key))]
        settings = ignoring(without_na(dict(settings)), options, where)
        by = convert(settings.get("by", cls.by), By, f"{where}.by")
        recipe_entries = {key: settings[key] for key in RECIPE if key in settings}
        own = {key: entry for key, entry in recipe_entries.items() if not _is_rule(entry)}
        recipe = Recipe.read(own.get("overrides"), own.get("skip"), where)
        entries = {key: entry for key, entry in settings.items() if key not in ("by", *own)}
        if entries.get("default", {}) is None:  # as without it
            del entries["default"]
        rules = {key: _get_config(key, entry, where) for key, entry in entries.items()}
        default = rules.pop("default", None)
        _check_patterns(rules, by, where)
        if isinstance(default, Mapping) and default.get("name") is None and len(default) <= 1:
            default = None
        if not rules and default is None and not recipe.overrides:
            raise ConfigError(f"{where}: nothing to quantize; name an operator.")
        return cls(by, rules, default, recipe, where)

    def select(self, mg: MaseGraph) -> dict[fx.Node, QuantSpec]:
        """Returns the nodes to quantize with their specs.

        Rules by type skip arithmetic that computes masks or positions.

        Raises:
            ConfigError: if a rule or a pattern matches no node, or its mapping does not fit the
                operator.
        """
        exact = mask_arithmetic(mg) if self.by == "type" else set()
        names = {node: list_names(node) for node in mg.nodes if _is_quantizable(mg, node)}
        places = {name for own in names.values() for name in own}
        keys = names
        if self.by == "type":
            keys = {node: (_get_row(mg, node).name,) for node in names}
        unnamed = self._unnamed({n: x for n, x in keys.items() if _get_row(mg, n).is_opt_in}, keys)
        ruled = self.choose({n: x for n, x in keys.items() if n not in unnamed}, places)
        skippable = (n for n in names if n in ruled or _get_row(mg, n).weight)
        skipped_paths = self.skipped_paths({place for n in skippable for place in _places(n)})
        chosen = {
            node: _spec_for(mg, node, settings, where)
            for node, (settings, where) in ruled.items()
            if skipped_paths.isdisjoint(_places(node)) and node not in exact
        }
        if ruled and all(not skipped_paths.isdisjoint(_places(node)) for node in ruled):
            raise ConfigError(f"{self.where}.skip: no layer remains to quantize; skip fewer.")
        layers = {
            node: own
            for node, own in names.items()
            if _get_row(mg, node).weight
            and skipped_paths.isdisjoint(_places(node))
            and self.may_override(node, chosen)
        }
        for node, text in self.recipe.choose(layers, self.where).items():
            spec = chosen.get(node) or _spec_for(mg, node, _present_spec(mg, node), self.where)
            chosen[node] = spec.with_quantizers(weight=parse_format_string(text))
        _check_shared(names, chosen)
        return chosen

    def _unnamed(
        self, opt_in: Mapping[fx.Node, Sequence[str]], every: Mapping[fx.Node, Sequence[str]]
    ) -> set[fx.Node]:
        """Returns nodes of opt-in operators without a rule; a pattern of only such nodes counts as
        one.
        """
        others = {name for node, own in every.items() if node not in opt_in for name in own}
        names = {name for own in opt_in.values() for name in own}
        named: set[str] = set()
        for key in self.rules if names else ():
            named |= self._named(key, names if not self._named(key, others) else {key} & names)
        return {node for node, own in opt_in.items() if named.isdisjoint(own)}

    def may_override(self, candidate: T, chosen: Collection[T]) -> bool:
        """Returns true if an override can apply: to nodes with a rule, or without rules to all."""
        return candidate in chosen or not (self.rules or self.default)

    def skipped_paths(self, paths: Collection[str]) -> set[str]:
        """Returns the paths that the recipe skips.

        Args:
            paths: names of quantizable layers, and of operators with a rule.
        Raises:
            ConfigError: if a pattern matches none.
        """

        def missing(pattern: str) -> ConfigError:
            near = nearest(pattern, paths)
            text = f"{self.where}.skip: no layer to quantize matches '{pattern}': {near}"
            return ConfigError(text)

        return self.recipe.skipped_paths(paths, missing)

    def choose(
        self, candidates: Mapping[T, Sequence[str]], places: Collection[str] = ()
    ) -> dict[T, tuple[Settings, str]]:
        """Returns the settings of candidates that have some, and the text of the rule.

        Args:
            candidates: names by which a rule can refer to each candidate.
            places: names of the candidates' nodes. Rules by type with such a name, which occur in
                MASE configs, cause a warning and have no effect.
        Raises:
            ConfigError: if a rule matches no candidate.
        """
        unused = set(self.rules)
        every = {name for names in candidates.values() for name in names}
        named = {key: self._named(key, every) for key in self.rules}
        chosen: dict[T, tuple[Settings, str]] = {}
        for candidate, names in candidates.items():
            matching = [key for name in names for key in self.rules if name in named[key]]
            unused -= set(matching)
            rule = matching[0] if matching else "default"
            settings = self.rules[rule] if matching else self.default
            if settings is not None:
                chosen[candidate] = settings, f"{self.where}['{rule}']"
        for key in self.rules:
            if key in unused and self.by == "type" and key in places:
                warn_once(
                    f"{self.where}: '{key}' names a node, but rules by 'type' select operators: it "
                    "has no effect, as in MASE. Use 'by': 'name'."
                )
            elif key in unused:
                raise ConfigError(self._explain_unused(key, candidates.values()))
        return chosen

    def may_mean(self, path: str) -> bool:
        """Returns true if rules would apply to a path if it were quantizable."""
        if any(match_paths(pattern, [path]) for pattern in self.recipe.skip):
            return False
        if (self.by == "type" and self.rules) or self.default is not None:
            return True
        names = (path, path.replace(".", "_"))
        return any(self._named(key, names) for key in self.rules)

    def _named(self, key: str, names: Collection[str]) -> set[str]:
        """Returns the names that a rule matches."""
        if self.by == "name":
            return match_paths(key, names)
        if self.by == "regex_name":
            return {name for name in names if re.fullmatch(key, name)}
        return {key}.intersection(names)

    def _explain_unused(self, key: str, candidates: Any) -> str:
        known = {name for names in candidates for name in names}
        what = {"type": "operator", "name": "node", "regex_name": "node"}[self.by]
        text = f"{self.where}: no quantizable {what} in this model matches '{key}'"
        if self.by == "type" and key in OPS and key not in known:
            names = ", ".join(sorted(known)) or "none whose results are real floating-point numbers"
            return f"{text}; it has: {names}."
        if self.by == "name" and key.startswith(PREFIX):
            return f"{text}: {nearest(key, known)}"
        if self.by == "regex_name" and any(re.search(key, name) for name in known):
            return f"{text}: a pattern covers the whole name; write '.*{key}.*' for a part of it."
        return f"{text}: {did_you_mean(key, known)}"


def _check_patterns(keys: Iterable[str], by: By, where: str) -> None:
    for key in keys if by != "type" else ():
        check_pattern(f"{PREFIX}{key}" if by == "regex_name" else key, where)


def _places(node: fx.Node) -> tuple[str, ...]:
    """Returns the names of a node, and the path of the module whose forward calls it."""
    return (*list_names(node), *list(node.meta.get("nn_module_stack", ()))[-1:])


def _present_spec(mg: MaseGraph, node: fx.Node) -> QuantSpec:
    """Returns the current formats of the function or module that a node calls."""
    module = mg.get_module(node)
    return module.spec if isinstance(module, QuantizedOperator) else QuantSpec()


def _check_shared(nodes: Iterable[fx.Node], chosen: Mapping[fx.Node, QuantSpec]) -> None:
    """Raises ConfigError if two calls of one module get different formats."""
    specs = {str(node.target): spec for node, spec in chosen.items() if node.op == "call_module"}
    for node in nodes:
        own = str(node.target)
        if node.op == "call_module" and own in specs and chosen.get(node) != specs[own]:
            raise ConfigError(
                f"quantize_transform_pass: module '{own}' is called more than once and has one set "
                f"of formats; use the same for all its calls, with one rule for '{own}'."
            )


def _is_rule(entry: Any) -> bool:
    return isinstance(entry, Mapping) and set(entry) == {"config"}


def _get_config(key: str, entry: Any, where: str) -> Settings:
    if _is_rule(entry):
        entry = entry["config"]
        if isinstance(entry, str):
            entry = parse_format_string(entry)
        if isinstance(entry, Mapping | QuantSpec | NumberFormat):
            return entry
    if key in ("config", "name"):
        raise ConfigError(
            f"{where}: '{key}' belongs in the rule of an operator or a layer, such as "
            "{'linear': {'config': {...}}}."
        )
    raise ConfigError(f"{where}['{key}']: expected {{'config': {{...}}}}, got {describe(entry)}.")


def check_its_class(module: nn.Module, path: str, where: str) -> None:
    """Raises ConfigError for a chosen module that does not compute the function of its class."""
    reason = why_not_its_class(module)
    if reason is not None:
        raise ConfigError(f"{where}: module '{path}' cannot be quantized: {reason}.")


def _get_row(mg: MaseGraph, node: fx.Node) -> Operator:
    """Returns the operator row of a node, for a module that of its class."""
    module = mg.get_module(node)
    if module is None or isinstance(module, QuantizedOperator):
        return mg.operator(node)
    return get_class_row(type(module))


def _spec_for(mg: MaseGraph, node: fx.Node, settings: Settings, where: str) -> QuantSpec:
    row, module = mg.operator(node), mg.get_module(node)
    if module is not None:
        check_its_class(module, str(node.target), where)
    if row.twin is not None:
        return QuantSpec.parse(settings, row.twin.operands, row.twin.fallback, where)
    if isinstance(module, QuantCall):
        return QuantSpec.parse(settings, module.operands, row.fallback, where)
    if module is not None and row.quantized is not None:
        return QuantSpec.parse(settings, row.quantized.present_operands(module), where=where)
    positions = zip(row.call_arguments(node), node.args, strict=False)
    given = {name: value for name, value in [*positions, *node.kwargs.items()] if value is not None}
    present = [operand for name, operand in row.arguments.items() if operand and name in given]
    return QuantSpec.parse(settings, present, row.fallback, where)


def _is_quantizable(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns true for quantizable calls on reals, except arithmetic on sizes and masks."""
    row, module = _get_row(mg, node), mg.get_module(node)
    if node.op == "call_module":
        has_twin = row.quantized is not None or isinstance(module, QuantizedOperator)
    else:
        is_call = node.op in ("call_function", "call_method")
        has_twin = is_call and bool(row.arguments or row.twin)
    results = node_metadata(node).common.results.values()
    return has_twin and bool(results) and all(info.is_floating for info in results)
