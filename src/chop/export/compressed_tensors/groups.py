"""compressed-tensors groups: which modules a `quantization_config` speaks of, and their scheme."""

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
from chop.export.foreign.expressions import expression, finds

FORMATS = (INTEGERS, INTEGERS_IN, FLOATS_IN, WHOLE, MX4, MX8, NV4)
"""Formats of weights that are read."""
STRATEGIES = ("tensor", "channel", "group")
KINDS: Mapping[str, tuple[str, ...]] = {
    INTEGERS: ("int",),
    INTEGERS_IN: ("int",),
    FLOATS_IN: ("float",),
    WHOLE: ("int", "float"),
}
"""Types of codes of formats with any strategy, whose layers may round their inputs."""
LEFT_OUT = ("transform_config", "sparsity_config")
"""What else a folder may say of a model, which would not be the same without."""
DENSE = "dense"
"""Format of a `sparsity_config` whose weights are all stored."""
DENSE_SINCE = 18
"""Minor version of the library in which codes first went on in the next word."""
REORDERED = ("group", "dynamic")
"""Value of `actorder` for reordered columns. Others were only rounded in that order."""
CLASSES = ("Embedding", "Linear")
"""Of layers that are packed, as targets name them."""
EXPRESSION = "re:"


@dataclass(frozen=True)
class Group:
    """Modules of one scheme, as `config_groups` has them.

    Attributes:
        targets: classes and paths.
        expressions: that find paths.
        format: how weights are stored.
        bits: of a code.
        kind: `int` or `float`.
        strategy: what shares a scale.
        group_size: columns that do, with strategy `group`; with `block` rows and columns.
        is_symmetric: there are no zero points.
        inputs: how inputs are rounded; None: not at all.
        is_reordered: columns may be in an order of their own, which a tensor says.
        has_whole_codes: codes do not go on in the next word, as before compressed-tensors 0.18.
        may_lack_inputs: modules without a static scale of inputs take them as they are.
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
        """Rank and text of each target that may be a module's: path, expression, class.

        Args:
            path: of the module; its class is not known.
        """
        for target in self.targets:
            if target == path or target in CLASSES:
                yield (0 if target == path else 2), target
        yield from ((1, x.pattern) for x in self.expressions if finds(x, path))


def parse_groups(settings: Any, where: str) -> list[Group]:
    """The groups of a `quantization_config`.

    Args:
        settings: of `config.json`.
        where: the folder, for messages.

    Raises:
        ConfigError: it is none, or a group has a scheme that has no format here.
    """
    groups = settings.get("config_groups") if isinstance(settings, Mapping) else None
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(f"'{where}': expected config_groups in its quantization_config.")
    for key in LEFT_OUT:
        said = settings.get(key)
        is_dense = isinstance(said, Mapping) and said.get("format") == DENSE
        if said and not is_dense:
            raise ConfigError(f"'{where}': expected no {key}, which has no form here.")
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
        raise ConfigError(f"{where}: expected float results, got output_activations.")
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
    found = (x.removeprefix(EXPRESSION) for x in named if x.startswith(EXPRESSION))
    expressions = tuple(expression(x, where) for x in found)
    is_reordered = weights.get("actorder") in (*REORDERED, True)
    return Group(
        *(targets, expressions, stored, bits, kind, strategy, size, is_symmetric, inputs),
        is_reordered=is_reordered,
    )


def _codes(weights: Mapping[str, Any], stored: str, where: str) -> tuple[int, str]:
    """Bits of a code, and its type."""
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
    """Strategy, group size, and whether there are no zero points."""
    strategy, size = str(weights.get("strategy")), weights.get("group_size")
    is_symmetric, sides = weights.get("symmetric") is not False, weights.get("block_structure")
    if size is not None and (type(size) is not int or size < 1):
        raise ConfigError(f"{where}: expected a group_size from 1 on, got {size!r}.")
    if not is_symmetric and (stored != INTEGERS or strategy == "tensor"):
        raise ConfigError(
            f"{where}: expected symmetric weights, got zero points in {stored} with strategy "
            f"'{strategy:.40}'."
        )
    if strategy == "block" and kind == "float" and stored in KINDS:
        if not isinstance(sides, list) or len(sides) != 2 or not _are_square(sides):
            raise ConfigError(f"{where}: expected blocks as [128, 128], got {sides!r:.40}.")
        return strategy, sides[0], is_symmetric
    if stored in KINDS and (strategy not in STRATEGIES or (strategy == "group" and not size)):
        raise ConfigError(
            f"{where}: expected a strategy of {', '.join(STRATEGIES)}, and of a group_size, got "
            f"'{strategy:.40}' of {size}."
        )
    return strategy, size, is_symmetric


def _are_square(sides: Sequence[Any]) -> bool:
    return type(sides[0]) is int and 1 < sides[0] < 2**20 and sides[0] == sides[1]


def find_group(path: str, groups: Sequence[Group]) -> Group:
    """The group of a module: of its path, else of an expression, else of its class.

    Of several expressions it is the first in the alphabet, as in the library; of several groups
    with the same target the last one.

    Args:
        path: of the module.
        groups: of a folder, see `parse_groups`.

    Raises:
        ConfigError: there is none, or it depends on the class.
    """
    found = {match: group for group in groups for match in group.matches(path)}
    if not found:
        raise ConfigError(f"{METHOD}: '{path}' has scales, and no group of config.json names it.")
    (rank, _), chosen = min(found.items(), key=lambda item: item[0])
    if rank == 2 and any(group != chosen for group in found.values()):
        raise ConfigError(
            f"{METHOD}: expected one group of config.json for {' and '.join(CLASSES)}, or one that "
            f"names '{path}'."
        )
    return chosen
