"""Circuit costs of a model by the formats of its operators, computed without synthesis."""

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
"""Rows of the example input; with one row, the batch dimension would be ambiguous."""
USUAL_CLOCK_MHZ = 100.0
STEP = 1.25
"""Ratio of successive folds tried for a device."""
OTHERS = "8.auto"
"""Format of operators without a choice."""


@dataclass(frozen=True)
class CircuitSettings:
    """Target of a circuit.

    Attributes:
        folds: options for the maximum number of cycles of a component per sample. Empty for a
            single fold: about 256 multipliers, or the first one that fits the device.
        device: device whose resources are counted. None for a 7-series device.
        clock_mhz: clock frequency for latencies.
        others: format of operators without a choice.
        varies_fold: adds folds around the default as options if `folds` is empty.
    """

    folds: tuple[int, ...] = ()
    device: Device | None = None
    clock_mhz: float = USUAL_CLOCK_MHZ
    others: str = OTHERS
    varies_fold: bool = False

    @property
    def family(self) -> Family:
        """Family of the device."""
        return XC7 if self.device is None else self.device.family


@dataclass(eq=False)
class CircuitCosts:
    """Circuit costs of a configuration, equal to those of the emitted design.

    The model is lowered to integers and planned, which takes tens of milliseconds. Results are
    cached.

    Args:
        layers: all operators of a graph.
        batches: input batches by name, from which formats with shared exponents derive their
            windows.
        settings: target of the circuit.
    """

    layers: Layers
    batches: Sequence[Mapping[str, Any]]
    settings: CircuitSettings
    _known: dict[tuple[object, ...], DesignCost | str] = field(default_factory=dict)

    def grids(self, quantized: MaseGraph) -> Grids:
        """Returns the grids of a settled graph of these layers."""
        return observed_grids(quantized, self.batches)

    def integers(self, chosen: Mapping[str, Formats]) -> MaseGraph:
        """Returns the integer graph of a configuration.

        Raises:
            ConfigError: if operators or formats have no integer form; the message lists all of
                them.
        """
        # Imported lazily, because it loads slow parts of torch.fx.
        from chop.integer.lower import lower
        from chop.nn.integer import IntegerOptions

        self.layers.switch(chosen)
        quantized = settled_copy(self.layers.mg)
        example = {
            name: x[:ROWS] if isinstance(x, Tensor) else x for name, x in self.batches[0].items()
        }
        return lower(quantized, example, self.grids(quantized), IntegerOptions(), True).mg

    def folds(self, chosen: Mapping[str, Formats]) -> tuple[int, ...]:
        """Returns the fold options in ascending order."""
        if self.settings.folds:
            return tuple(sorted(set(self.settings.folds)))
        usual = self._usual_fold(self.integers(chosen))
        powers = range(-2, 3) if self.settings.varies_fold else (0,)
        return tuple(sorted({max(1, round(usual * 2.0**k)) for k in powers}))

    def _usual_fold(self, mg: MaseGraph) -> int:
        """Returns the fold for about 256 multipliers, or a larger one that fits the device."""
        fold, device = default_fold(mg), self.settings.device
        slowest = netlist(mg, UNFOLDED).interval
        while device is not None and fold < slowest:
            if not excess(design_cost(mg, fold, self.settings.family).usage, device):
                break
            fold = math.ceil(fold * STEP)
        return fold

    def design(self, chosen: Mapping[str, Formats], fold: int) -> DesignCost:
        """Returns the planned design.

        Raises:
            ConfigError: if there is no circuit; the message lists unsupported operators.
        """
        formats = tuple(
            (name, operand, fmt.key)
            for name, formats_by_operand in chosen.items()
            for operand, fmt in formats_by_operand.items()
        )
        key = (fold, *formats)
        if key not in self._known:
            try:
                self._known[key] = design_cost(self.integers(chosen), fold, self.settings.family)
            except ConfigError as error:
                self._known[key] = str(error)
        design = self._known[key]
        if isinstance(design, str):
            raise ConfigError(design)
        return design

    def __call__(self, chosen: Mapping[str, Formats], fold: int) -> dict[str, float]:
        """Returns the circuit costs among `COSTS`.

        Raises:
            NotANumberError: if the configuration has no circuit, which fails only its trial.
        """
        try:
            design = self.design(chosen, fold)
        except ConfigError as error:
            raise NotANumberError(str(error)) from error
        numbers = {**design.usage._asdict(), "interval": design.interval}
        numbers["latency_us"] = design.latency / self.settings.clock_mhz
        assert set(numbers) == {name for name, cost in COSTS.items() if cost.is_of_circuit}
        return {name: float(number) for name, number in numbers.items()}


def begin(
    costs: CircuitCosts,
    names: Iterable[str],
    options: Sequence[str],
    list_formats: Callable[[Config], Mapping[str, Formats]],
) -> tuple[tuple[int, ...], Config]:
    """Returns the fold options in ascending order, and a configuration that has a circuit.

    A warning lists options that have no circuit when used everywhere. Mixed configurations with
    them may have one.

    Args:
        costs: circuit costs.
        names: names of the choices.
        options: options of each choice, in order of bits.
        list_formats: maps a partial configuration to the formats of its layers.
    Returns: the uniform configuration of fewest bits with a circuit. If there is none, a greedily
        built one.
    Raises:
        ConfigError: if no such configuration has a circuit.
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
            f"no circuit has {' or '.join(refused)} in all layers ({first}: {reason}): trials "
            "without a circuit fail, the others continue."
        )
    return folds, base


def _by_choice(
    costs: CircuitCosts,
    names: Iterable[str],
    options: Sequence[str],
    list_formats: Callable[[Config], Mapping[str, Formats]],
) -> Config:
    """Builds a configuration with a circuit greedily.

    Each choice takes the first option that has a circuit together with the earlier choices, while
    later choices have the format of the other operators.

    Raises:
        ConfigError: if a choice has no such option.
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
            raise ConfigError(
                f"no combination of the formats has a circuit: {name} in {first}: {reason}."
            )
    return taken
