"""Parser of the groups in a compressed-tensors `quantization_config`: their modules and schemes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chop.errors import ConfigError, did_you_mean
from chop.export.compressed_tensors.inputs import InputScheme, parse_inputs
from chop.export.compressed_tensors.target import (
    FLOATS_IN,
    INTEGERS,
    INTEGERS_IN,
    METHOD,
    MX4,
    MX8,
    NV4,
    WHOLE,
)
from chop.export.foreign.expressions import EXPRESSION, expression, finds

FORMATS = (INTEGERS, INTEGERS_IN, FLOATS_IN, WHOLE, MX4, MX8, NV4)
"""Weight formats that can be read."""
STRATEGIES = ("tensor", "channel", "group")
KINDS: Mapping[str, tuple[str, ...]] = {
    INTEGERS: ("int",),
    INTEGERS_IN: ("int",),
    FLOATS_IN: ("float",),
    WHOLE: ("int", "float"),
}
"""Code types of formats that support any strategy and rounded inputs."""
UNSUPPORTED = ("transform_config", "sparsity_config")
"""Settings that change a model and cannot be read."""
DENSE = "dense"
"""Format of a `sparsity_config` that stores all weights."""
DENSE_SINCE = 18
"""First minor version of the library in which a code may span two words."""
REORDERED = ("group", "dynamic")
"""Values of `actorder` for reordered columns. Others only changed the order of rounding."""
CLASSES = ("Embedding", "Linear")
"""Classes of packed layers, as targets name them."""


@dataclass(frozen=True)
class Group:
    """Modules of one scheme, an entry of `config_groups`.

    Attributes:
        targets: classes and paths.
        expressions: regular expressions for paths.
        format: storage format of the weights.
        bits: bits of a code.
        kind: `int` or `float`.
        strategy: granularity of scales.
        group_size: columns that share a scale with strategy `group`; rows and columns with `block`.
        is_symmetric: True without zero points.
        inputs: rounding of inputs, or None.
        is_reordered: columns may be permuted, as given by a tensor.
        has_whole_codes: codes never span two words, as before compressed-tensors 0.18.
        may_lack_inputs: modules without a static input scale do not round their inputs.
    """

    targets: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]
    format: str
    bits: int
    kind: str
    strategy: str
    group_size: int | None
    is_symmetric: bool
    inputs: InputScheme | None
    is_reordered: bool = False
    has_whole_codes: bool = False
    may_lack_inputs: bool = False

    def matches(self, path: str) -> Iterator[tuple[int, str]]:
        """Yields rank and text of each target that may match a module: path, expression, class.

        Args:
            path: path of the module; its class is unknown.
        """
        for target in self.targets:
            if target == path or target in CLASSES:
                yield (0 if target == path else 2), target
        yield from ((1, x.pattern) for x in self.expressions if finds(x, path))


def parse_groups(settings: Any, where: str) -> list[Group]:
    """Parses the groups of a `quantization_config`.

    Args:
        settings: `quantization_config` of `config.json`.
        where: folder, for messages.

    Raises:
        ConfigError: if the settings are malformed, or if a group's scheme has no format in chop.
    """
    groups = settings.get("config_groups") if isinstance(settings, Mapping) else None
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(f"'{where}': expected config_groups in its quantization_config.")
    for key in UNSUPPORTED:
        said = settings.get(key)
        is_dense = isinstance(said, Mapping) and said.get("format") == DENSE
        if said and not is_dense:
            raise ConfigError(f"'{where}': {key} is not supported.")
    default = settings.get("format")
    version = re.match(r"0\.(\d+)\.", str(settings.get("version")))
    is_old = version is not None and int(version[1]) < DENSE_SINCE
    return [
        replace(_group(plain, default, f"'{where}', {name}"), has_whole_codes=is_old)
        for name, plain in groups.items()
    ]


def _group(plain: Any, default: Any, where: str) -> Group:
    weights = plain.get("weights") if isinstance(plain, Mapping) else None
    if not isinstance(weights, Mapping) or not isinstance(plain.get("targets"), Sequence):
        raise ConfigError(f"{where}: expected targets and weights, got {plain!r:.80}.")
    if plain.get("output_activations") is not None:
        raise ConfigError(f"{where}: output_activations is not supported; expected float results.")
    stored = plain.get("format") or default
    if not isinstance(stored, str) or stored not in FORMATS:
        raise ConfigError(f"{where}: format '{stored}': {did_you_mean(str(stored), FORMATS)}")
    bits, kind = _codes(weights, stored, where)
    inputs = parse_inputs(plain.get("input_activations"), where)
    if inputs is not None and stored not in KINDS:
        raise ConfigError(f"{where}: expected float inputs of {stored}, got input_activations.")
    strategy, size, is_symmetric = _scales(weights, stored, kind, where)
    named = [*map(str, plain["targets"])]
    targets = tuple(x for x in named if not x.startswith(EXPRESSION))
    patterns = (x.removeprefix(EXPRESSION) for x in named if x.startswith(EXPRESSION))
    expressions = tuple(expression(x, where) for x in patterns)
    is_reordered = weights.get("actorder") in (*REORDERED, True)
    return Group(
        *(targets, expressions, stored, bits, kind, strategy, size, is_symmetric, inputs),
        is_reordered=is_reordered,
    )


def _codes(weights: Mapping[str, Any], stored: str, where: str) -> tuple[int, str]:
    """Returns the bits of a code and its type."""
    bits, kind = weights.get("num_bits"), str(weights.get("type", "int"))
    if type(bits) is not int or not 2 <= bits <= 8:
        raise ConfigError(f"{where}: expected num_bits from 2 to 8, got {bits!r}.")
    kinds = KINDS.get(stored, (kind,))
    if kind not in kinds or (kind == "float" and stored in KINDS and bits != 8):
        raise ConfigError(f"{where}: {stored}: got {bits} bits of type '{kind:.20}'.")
    return bits, kind


def _scales(
    weights: Mapping[str, Any], stored: str, kind: str, where: str
) -> tuple[str, int | None, bool]:
    """Returns the strategy, the group size, and True if there are no zero points."""
    strategy, size = str(weights.get("strategy")), weights.get("group_size")
    is_symmetric, sides = weights.get("symmetric") is not False, weights.get("block_structure")
    if size is not None and (type(size) is not int or size < 1):
        raise ConfigError(f"{where}: expected a group_size of at least 1, got {size!r}.")
    if not is_symmetric and (stored != INTEGERS or strategy == "tensor"):
        raise ConfigError(
            f"{where}: expected symmetric weights; zero points in {stored} with strategy "
            f"'{strategy:.40}' are not supported."
        )
    if strategy == "block" and kind == "float" and stored in KINDS:
        if not isinstance(sides, list) or len(sides) != 2 or not _are_square(sides):
            raise ConfigError(f"{where}: expected blocks like [128, 128], got {sides!r:.40}.")
        return strategy, sides[0], is_symmetric
    if stored in KINDS and (strategy not in STRATEGIES or (strategy == "group" and not size)):
        raise ConfigError(
            f"{where}: expected one of the strategies {', '.join(STRATEGIES)} (group needs a "
            f"group_size), got '{strategy:.40}' with group_size {size}."
        )
    return strategy, size, is_symmetric


def _are_square(sides: Sequence[Any]) -> bool:
    return type(sides[0]) is int and 1 < sides[0] < 2**20 and sides[0] == sides[1]


def find_group(path: str, groups: Sequence[Group]) -> Group:
    """Returns the group of a module, matched by path, then by expression, then by class.

    Among several expressions the alphabetically first one applies, as in the library. Among several
    groups with the same target the last one applies.

    Args:
        path: path of the module.
        groups: groups of a folder, see `parse_groups`.

    Raises:
        ConfigError: if no group matches, or if the match depends on the module's class.
    """
    matches = {match: group for group in groups for match in group.matches(path)}
    if not matches:
        raise ConfigError(f"{METHOD}: '{path}' has scales, but no group of config.json names it.")
    (rank, _), chosen = min(matches.items(), key=lambda item: item[0])
    if rank == 2 and any(group != chosen for group in matches.values()):
        raise ConfigError(
            f"{METHOD}: groups of config.json differ for {' and '.join(CLASSES)}, and none names "
            f"'{path}'."
        )
    return chosen
