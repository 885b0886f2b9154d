"""Settings of `chop emit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from chop.actions.emit.lower_settings import LoweringConfig
from chop.config import MORE, Range
from chop.errors import ConfigError


@dataclass(frozen=True)
class EmitConfig(LoweringConfig):
    """Settings of `chop emit`.

    Attributes:
        fold: most cycles of a component for a sample. They are the products that one multiplier
            computes. Fewer cycles take more multipliers. 0 chooses a fold of about 256 of them.
        device: FPGA that the cycles are chosen for. The fastest design comes first, then that of
            fewest lookup tables: ice40-hx8k, ecp5-25, ecp5-45, xc7a100t or ecp5-85, or what there
            is, as in lut=20000,dsp=40,bram=50; with dsp=0 products are made of lookup tables, by
            Yosys too. What is taken is estimated: lookup tables and flip-flops are within 20 % in
            most designs that were compared. Default: with place and without fold the device that is
            placed on, else none, one fold for all.
        samples: number of test rows that are simulated. Each is, under each profile of stalls.
            Default: all.
        icarus_samples: how many of them Icarus simulates as well, a second opinion; 0 for none.
        shrink_fifos: makes FIFOs as short as samples allow. Each is as deep as what it stores where
            samples come evenly, and a margin, never deeper than planned; the circuit is verified
            again. Where that fails, or a sample takes longer, depths stay as planned. It takes
            about twice as long, and under stalls a circuit of shorter FIFOs may be slower.
        synthesis: counts resources with Yosys. They are lookup tables, registers, DSP blocks and
            memories of 7-series FPGAs.
        place: places and routes the circuit with open tools. The result has its clock.
        place_on: device of place, as ecp5-85. Others are ecp5-25, ecp5-45 (speed grade 6) and
            ice40-hx8k. Default: that of device, else ecp5-85.
        place_seeds: how often; the median counts. Default: 3.
        clock_mhz: the clock by which latency and interval are given in microseconds, where the
            circuit is not placed.
        wave: writes a trace of the first sample, `wave.vcd`.
        check_only: repeats the checks of what is in `out`. They are the hashes of all files, the
            circuit, which is emitted again and compared byte for byte, every simulation with its
            seed, every output; nothing of `out` is run or written, and no other setting is read.

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
    clock_mhz: Annotated[float, Range(1e-3, 1e5)] = field(default=100.0, metadata=MORE)
    wave: bool = field(default=False, metadata=MORE)
    check_only: bool = False

    def __post_init__(self) -> None:
        from chop.hardware.costs.devices import parse_device

        super().__post_init__()
        if self.shrink_fifos and self.samples is not None:
            from chop.hardware.folds.shrink import check_samples

            check_samples(self.samples)
        if self.device is not None:
            parse_device(self.device)
            if self.fold:
                raise ConfigError("fold: device chooses the folds; give one of them.")
        if self.place_on is not None and not self.place:
            raise ConfigError("place_on: nothing is placed; add place, or leave place_on out.")
        if self.place_seeds is not None and not self.place:
            raise ConfigError("place_seeds: nothing is placed; add place, or leave it out.")

    @property
    def torch_device(self) -> str | None:
        """Where the model runs: `device` is that of the circuit."""
        return None

    @property
    def has_multipliers(self) -> bool:
        """True if the circuit's device has any; else its products are made of lookup tables."""
        from chop.hardware.costs.devices import parse_device

        return self.device is None or parse_device(self.device).family.has_multipliers

    @property
    def placed_on(self) -> str:
        """The device that a circuit is placed on."""
        return self.place_on or self.device or "ecp5-85"
