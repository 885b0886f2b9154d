"""Settings of `chop emit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from chop.actions.emit.lower_settings import LoweringConfig
from chop.config import MORE, Range
from chop.errors import ConfigError


@dataclass(frozen=True)
class EmitConfig(LoweringConfig):
    """Settings of `chop emit`.

    Attributes:
        fold: maximum cycles of a component per sample. Each multiplier computes that many products;
            fewer cycles need more multipliers. 0 chooses a fold with about 256 multipliers.
        device: FPGA to fit the circuit to. Among the designs that fit, the fastest is chosen,
            then the one with the fewest lookup tables. Choices: ice40-hx8k, ecp5-25, ecp5-45,
            xc7a100t, ecp5-85, or resources such as lut=20000,dsp=40,bram=50, counted as those of
            Xilinx 7 series. With dsp=0, products use lookup tables, in Yosys too. Resources are
            estimates: lookup tables and flip-flops are within 20 % in most compared designs.
            Default: with place and without fold the device of place; else none, with one fold for
            all.
        samples: number of test rows to simulate. They are evenly spread over all, and each runs
            under every stall profile. With decode, a row is a text, and each of its tokens is a
            sample of the circuit. Default: all.
        icarus_samples: number of these that Icarus also simulates; 0 for none.
        shrink_fifos: make FIFOs as short as the samples allow. Each gets the depth that it used
            with evenly spaced samples plus a margin, never more than planned, and the circuit is
            verified again. If that fails, or a sample takes longer, depths stay as planned. This
            about doubles the time, and shorter FIFOs may be slower under stalls.
        synthesis: count resources with Yosys. They are lookup tables, registers, DSP blocks and
            memories of 7-series FPGAs.
        place: place and route the circuit with open tools. The result has its clock frequency.
        place_on: device to place on, such as ecp5-85. Others are ecp5-25, ecp5-45 (speed grade 6)
            and ice40-hx8k. Default: that of device, else ecp5-85.
        place_seeds: number of placements, of which the median counts. Default: 3.
        pins: pin constraints of a board for place. The file has a site for each pin of the
            circuit: .lpf for ECP5, .pcf for iCE40. board/pins.lpf.example in the output folder
            lists all pins. Default: nextpnr chooses the pins, for timing only.
        clock_mhz: clock frequency in the constraints for synthesis tools. If the circuit is not
            placed, also that for latency and interval in microseconds.
        wrap: ports of a module around the circuit. With axi-stream, `rtl/top_axis.sv` has
            AXI4-Stream ports, and the circuit is verified through it. With axi-lite,
            `rtl/top_axi_lite.sv` also has AXI4-Lite registers, which take loadable weights.
        weights_from: weights for a loadable circuit, RUN. They are the state dict of a retrained
            model, .safetensors or .pt, or its QONNX file. The same circuit is written to `out` with
            the new words, and verified with them. Its number formats stay. Default: the weights of
            the model.
        wave: write a trace of the first sample, `wave.vcd`.
        check_only: repeat the checks of a circuit: RUN or `out`. It verifies the hashes of all
            files, emits the circuit again to compare it, and repeats every simulation with its
            seed. It writes nothing, runs nothing from the folder, and ignores other settings.

    The other settings are those of `LoweringConfig`.
    """

    out: Path = Path("runs/emit")
    fold: Annotated[int, Range(0, 2**62)] = 0
    device: str | None = None
    samples: Annotated[int | None, Range(1, 10**9)] = None
    icarus_samples: Annotated[int, Range(0, 10**9)] = field(default=2, metadata=MORE)
    shrink_fifos: bool = False
    synthesis: bool = True
    place: bool = False
    place_on: str | None = None
    place_seeds: Annotated[int | None, Range(1, 1000)] = field(default=None, metadata=MORE)
    pins: Path | None = None
    clock_mhz: Annotated[float, Range(1e-3, 1e5)] = field(default=100.0, metadata=MORE)
    wrap: Literal["none", "axi-stream", "axi-lite"] = "none"
    weights_from: Path | None = None
    wave: bool = field(default=False, metadata=MORE)
    check_only: bool = False

    def __post_init__(self) -> None:
        from chop.hardware.costs.board import check_pins_file
        from chop.hardware.costs.devices import parse_device

        super().__post_init__()
        if self.shrink_fifos and self.samples is not None:
            from chop.hardware.folds.shrink import check_samples

            check_samples(self.samples)
        if self.device is not None:
            parse_device(self.device)
            if self.fold:
                raise ConfigError("fold: expected either fold or device, which chooses the folds.")
        if self.place_on is not None and not self.place:
            raise ConfigError("place_on: add place, or leave place_on out.")
        if self.place_seeds is not None and not self.place:
            raise ConfigError("place_seeds: add place, or leave place_seeds out.")
        if self.pins is not None:
            if not self.place:
                raise ConfigError("pins: add place, or leave pins out.")
            check_pins_file(self.pins, self.placed_on)
        if self.place:
            self._check_family()

    def _check_family(self) -> None:
        """Raises ConfigError if folds are chosen for one family and placed on another one."""
        from chop.hardware.costs.devices import DEVICES, parse_device

        if self.device is None or (placed := DEVICES.get(self.placed_on)) is None:
            return
        counted = parse_device(self.device).family.title
        if counted != placed.family.title:
            raise ConfigError(
                f"place_on: the resources of device '{self.device}' are counted with the cost "
                f"tables of {counted}, but {placed.name} is a {placed.family.title}: use --device "
                f"{placed.name}."
            )

    @property
    def torch_device(self) -> str | None:
        """Device of the model in torch; `device` is that of the circuit."""
        return None

    @property
    def has_multipliers(self) -> bool:
        """True if the circuit's device has multipliers; otherwise products use lookup tables."""
        from chop.hardware.costs.devices import parse_device

        return self.device is None or parse_device(self.device).family.has_multipliers

    @property
    def placed_on(self) -> str:
        """Device to place the circuit on."""
        return self.place_on or self.device or "ecp5-85"
