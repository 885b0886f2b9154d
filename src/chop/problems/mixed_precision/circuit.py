"""Costs of a model's circuit by the formats of its operators: nothing is synthesized."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from chop.base.notices import warn_once
from chop.errors import ConfigError
from chop.formats import parse_format_string
from chop.hardware.costs.devices import XC7, Device, Family
from chop.hardware.costs.estimate import DesignCost, design_cost
from chop.hardware.design.emit import UNFOLDED, default_fold
from chop.hardware.design.netlist import netlist
from chop.hardware.folds.fold import excess
from chop.integer.grids import Grids, observed_grids
from chop.ir.graph import MaseGraph
from chop.ir.settled import settled_copy
from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.layers import Formats, Layers
from chop.search.objective import NotANumberError
from chop.search.space import Config

ROWS = 2
"""Of the example that sizes follow: one could be taken for a dimension without rows."""
USUAL_CLOCK_MHZ = 100.0
STEP = 1.25
"""From one fold that is tried on a device to the next."""
OTHERS = "8.auto"
"""The format of operators that no search is about."""


@dataclass(frozen=True)
class CircuitSettings:
    """What a circuit is made for.

    Attributes:
        folds: most cycles of a component for a sample, each an option; without any, one of about
            256 multipliers, or the first one that the device holds.
        device: whose resources are counted; None for one of 7-series.
        clock_mhz: that latencies are told at.
        others: the format of operators that no choice is about.
        varies_fold: without `folds`, cycles around the one that is chosen are options, too.
    """

    folds: tuple[int, ...] = ()
    device: Device | None = None
    clock_mhz: float = USUAL_CLOCK_MHZ
    others: str = OTHERS
    varies_fold: bool = False

    @property
    def family(self) -> Family:
        """Of the device."""
        return XC7 if self.device is None else self.device.family


@dataclass(eq=False)
class CircuitCosts:
    """What the circuit of a choice takes: that of the design that is emitted, exactly.

    The model is lowered to integers and planned, in some tens of milliseconds; equal choices once.

    Args:
        layers: all operators of a graph.
        batches: of inputs by name, in which blocks with shared exponents find their windows.
        settings: what it is made for.
    """

    layers: Layers
    batches: Sequence[Mapping[str, Any]]
    settings: CircuitSettings
    _known: dict[tuple[object, ...], DesignCost | str] = field(default_factory=dict)

    def grids(self, quantized: MaseGraph) -> Grids:
        """Of a settled graph of these layers."""
        return observed_grids(quantized, self.batches)

    def integers(self, chosen: Mapping[str, Formats]) -> MaseGraph:
        """The graph of integers of a choice.

        Raises:
            ConfigError: operators or formats have no integer form; names all of them.
        """
        # The engine is imported when it is used: it loads parts of torch.fx that take long.
        from chop.integer.lower import lower
        from chop.nn.integer import IntegerOptions

        self.layers.switch(chosen)
        quantized = settled_copy(self.layers.mg)
        example = {
            name: x[:ROWS] if isinstance(x, Tensor) else x for name, x in self.batches[0].items()
        }
        return lower(quantized, example, self.grids(quantized), IntegerOptions(), True).mg

    def folds(self, chosen: Mapping[str, Formats]) -> tuple[int, ...]:
        """The cycles that are options, ascending."""
        if self.settings.folds:
            return tuple(sorted(set(self.settings.folds)))
        usual = self._usual_fold(self.integers(chosen))
        powers = range(-2, 3) if self.settings.varies_fold else (0,)
        return tuple(sorted({max(1, round(usual * 2.0**k)) for k in powers}))

    def _usual_fold(self, mg: MaseGraph) -> int:
        """Cycles of about 256 multipliers, or more of them, in steps of a quarter, for a device."""
        fold, device = default_fold(mg), self.settings.device
        slowest = netlist(mg, UNFOLDED).interval
        while device is not None and fold < slowest:
            if not excess(design_cost(mg, fold, self.settings.family).usage, device):
                break
            fold = math.ceil(fold * STEP)
        return fold

    def design(self, chosen: Mapping[str, Formats], fold: int) -> DesignCost:
        """What the design takes.

        Raises:
            ConfigError: there is no circuit; names what has none.
        """
        formats = tuple(
            (name, operand, fmt.key)
            for name, of_layer in chosen.items()
            for operand, fmt in of_layer.items()
        )
        key = (fold, *formats)
        if key not in self._known:
            try:
                self._known[key] = design_cost(self.integers(chosen), fold, self.settings.family)
            except ConfigError as error:
                self._known[key] = str(error)
        found = self._known[key]
        if isinstance(found, str):
            raise ConfigError(found)
        return found

    def __call__(self, chosen: Mapping[str, Formats], fold: int) -> dict[str, float]:
        """The numbers of `COSTS` that are those of a circuit.

        Raises:
            NotANumberError: the choice has no circuit: a trial of it fails, and no other.
        """
        try:
            found = self.design(chosen, fold)
        except ConfigError as error:
            raise NotANumberError(str(error)) from error
        numbers = {**found.usage._asdict(), "interval": found.interval}
        numbers["latency_us"] = found.latency / self.settings.clock_mhz
        assert set(numbers) == {name for name, cost in COSTS.items() if cost.is_of_circuit}
        return {name: float(number) for name, number in numbers.items()}


def begin(
    costs: CircuitCosts,
    names: Iterable[str],
    options: Sequence[str],
    list_formats: Callable[[Config], Mapping[str, Formats]],
) -> tuple[tuple[int, ...], Config]:
    """The cycles that are options, ascending, and a mix that has a circuit.

    Options that have none everywhere are told; a mix with some of them may have one.

    Args:
        costs: of the circuit.
        names: of the choices.
        options: of each choice, those of few bits first.
        list_formats: a mix of some choices -> formats of the layers, of those choices alone.
    Returns: of the mixes that take one option everywhere that of fewest bits; where none of them
        has a circuit, one that was found choice by choice.
    Raises:
        ConfigError: no such mix has a circuit.
    """
    folds, refused = tuple[int, ...](), dict[str, str]()
    base: Config | None = None
    for text in reversed(options):
        mix: Config = dict.fromkeys(names, text)
        try:
            folds = folds or costs.folds(list_formats(mix))
            costs.design(list_formats(mix), folds[-1])
            base = mix
        except ConfigError as error:
            refused[text] = str(error).rstrip(".")
    if base is None:
        base = _by_choice(costs, names, options, list_formats)
        folds = costs.folds(list_formats(base))
    if refused:
        first, reason = next(iter(refused.items()))
        warn_once(
            f"no circuit has one format everywhere where that is {' or '.join(refused)} (of "
            f"{first}: {reason}): a trial of a mix without a circuit fails, and no other."
        )
    return folds, base


def _by_choice(
    costs: CircuitCosts,
    names: Iterable[str],
    options: Sequence[str],
    list_formats: Callable[[Config], Mapping[str, Formats]],
) -> Config:
    """A mix that has a circuit: each choice takes the first option that has one beside those before
    it, while those after it have the format of the other operators.

    Raises:
        ConfigError: a choice has no such option.
    """
    others = parse_format_string(costs.settings.others)
    taken: dict[str, str] = {}
    for name in names:
        reasons = {}
        for text in reversed(options):
            chosen = list_formats({**taken, name: text})
            filled = {
                layer: {**dict.fromkeys(own.operands, others), **chosen.get(layer, {})}
                for layer, own in costs.layers.by_name.items()
            }
            try:
                costs.design(filled, UNFOLDED)
                taken[name] = text
                break
            except ConfigError as error:
                reasons[text] = str(error).rstrip(".")
        if name not in taken:
            first, reason = next(iter(reasons.items()))
            raise ConfigError(f"no mix of the formats has a circuit: {name} in {first}: {reason}.")
    return taken
