"""Settings of the circuit for goals and budgets of `chop search precision`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from chop.config import MORE, Range
from chop.errors import ConfigError

if TYPE_CHECKING:
    from chop.problems.mixed_precision.circuit import CircuitSettings
    from chop.search import Constraint

TORCH_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Kinds of torch devices; other devices are FPGAs."""
CIRCUIT_SETTINGS = ("folds", "clock_mhz", "others", "emit", "place")
"""Settings that need a goal or budget of a circuit."""


@dataclass(frozen=True)
class CircuitOptions(ABC):
    """Circuit of the model.

    Attributes:
        device: torch device, or the FPGA of a circuit. With a goal or budget of a circuit, the
            lookup tables, multipliers and memories of the FPGA become budgets: ice40-hx8k,
            ecp5-25, ecp5-45, xc7a100t, ecp5-85, or resources such as lut=20000,dsp=0,bram=50
            (products then use lookup tables). Default: a GPU if there is one, else the CPU;
            resources of 7-series.
        folds: maximum cycles per sample of a component; several become a choice of the search.
            Default: about 256 multipliers, or fewer if the device has fewer; with a goal or budget
            of interval or latency_us also a quarter to four times as many cycles.
        clock_mhz: clock frequency for latency_us.
        others: format of operators outside the search, if there is a circuit.
        emit: emit and verify the circuit of the best trial. It is written to OUT/NAME/circuit.
        place: also place and route it on the device.
    """

    device: str | None = None
    folds: Annotated[tuple[int, ...], Range(1, unit="cycles")] = field(default=(), metadata=MORE)
    clock_mhz: Annotated[float, Range(1e-3, 1e5)] = field(default=100.0, metadata=MORE)
    others: str = field(default="8.auto", metadata=MORE)
    emit: bool = False
    place: bool = False

    @abstractmethod
    def goal_names(self) -> tuple[str, ...]:
        """Returns the names that goals and budgets refer to."""

    def check_circuit(self) -> None:
        """Raises ConfigError if settings of a circuit are wrong, or there is no circuit."""
        from chop.formats import parse_format_string
        from chop.hardware.costs.devices import parse_device

        defaults = {each.name: each.default for each in fields(self)}
        given = [name for name in CIRCUIT_SETTINGS if getattr(self, name) != defaults[name]]
        given = ["device"] * (self.torch_device != self.device) + given
        if given and not self.circuit_goals():
            raise ConfigError(
                f"{given[0]}: expected a goal or budget of a circuit as well: lut, ff, dsp, bram, "
                "interval or latency_us."
            )
        if self.place and not self.emit:
            raise ConfigError("place: add emit, which writes the circuit to place.")
        circuit, kind = self.circuit(), (self.torch_device or "cpu").partition(":")[0]
        if circuit is not None and kind not in TORCH_DEVICES:
            parse_device(kind)
        router = circuit and circuit.device and circuit.device.router
        if self.place and router is None:
            raise ConfigError(
                f"place: no tool can place on '{self.device or 'no device'}': name a device, such "
                "as --device ecp5-85."
            )
        parse_format_string(self.others)

    def circuit_goals(self) -> list[str]:
        """Returns the goals and budgets that are costs of a circuit."""
        from chop.problems.mixed_precision.costs import COSTS

        names = dict.fromkeys(self.goal_names())
        return [name for name in names if name in COSTS and COSTS[name].is_of_circuit]

    def circuit_columns(self) -> list[tuple[str, int]]:
        """Returns the circuit costs in tables, with their decimal places."""
        from chop.problems.mixed_precision.costs import COSTS

        names = [name for name, cost in COSTS.items() if cost.is_of_circuit]
        return [(name, 2 * (name == "latency_us")) for name in names if self.circuit_goals()]

    def circuit(self) -> CircuitSettings | None:
        """Returns the settings of the circuit; None if no goal or budget refers to one."""
        goals = self.circuit_goals()
        if not goals:
            return None
        from chop.hardware.costs.devices import parse_device
        from chop.problems.mixed_precision.circuit import CircuitSettings

        device = parse_device(self.device) if self.device and not self.torch_device else None
        varies = bool({"interval", "latency_us"} & set(goals))
        return CircuitSettings(self.folds, device, self.clock_mhz, self.others, varies)

    def circuit_identity(self) -> dict[str, Any]:
        """Returns the circuit settings that determine a result; {} without a circuit."""
        circuit = self.circuit()
        if circuit is None:
            return {}
        from chop.hardware.costs.estimate import estimates_id

        device = circuit.device and circuit.device.name
        own = {name: getattr(self, name) for name in ("clock_mhz", "others")}
        own |= {"device": device, "folds": list(self.folds), "estimates": estimates_id()}
        return own

    @property
    def torch_device(self) -> str | None:
        """Device of the model in torch."""
        from chop.hardware.costs.devices import DEVICES

        is_circuit = self.device in DEVICES or "=" in (self.device or "")
        return None if is_circuit else self.device

    def device_limits(self) -> dict[str, Constraint]:
        """Returns the budgets that the device of a circuit sets, by resource, including 0."""
        from chop.hardware.costs.devices import RESOURCES
        from chop.search import Constraint

        circuit = self.circuit()
        if circuit is None or circuit.device is None:
            return {}
        # Circuits for a device without multipliers never use any.
        names = [name for name in RESOURCES if name != "dsp" or circuit.device.dsp]
        return {name: Constraint(name, getattr(circuit.device, name), "minimize") for name in names}
