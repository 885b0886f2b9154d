"""Devices that a design may have to fit: how much of each resource they have.

Numbers are those of public data sheets: Lattice, "ECP5 and ECP5-5G Family Data Sheet"
(FPGA-DS-02012), table 1.1, of which nextpnr counts 24,288, 43,848 and 83,640 lookup tables on the
three devices; Lattice, "iCE40 LP/HX Family Data Sheet" (FPGA-DS-02029), table 1.1; Xilinx, "7
Series FPGAs Overview" (DS180), table "Artix-7".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from chop.errors import ConfigError, did_you_mean

Resource = Literal["lut", "ff", "dsp", "bram"]
RESOURCES: tuple[Resource, ...] = ("lut", "ff", "dsp", "bram")
"""Lookup tables, flip-flops, multipliers and block memories."""


@dataclass(frozen=True)
class SmallRam:
    """A memory that a few lookup tables make.

    Attributes:
        words: that it stores.
        width: of a word in bits.
        luts: lookup tables that it takes.
        cost: what Yosys' `memory_libmap` takes it for.
        by_width: the part of it that is less where not all of the width is used.
    """

    words: int
    width: int
    luts: int
    cost: float
    by_width: float = 0.0


@dataclass(frozen=True)
class Family:
    """What the parts of a device can do.

    Attributes:
        dsp_width: bits of each factor of a signed multiplier that circuits use; 0 where there is
            none, and products are made of lookup tables.
        least_product: products of fewer bits are made of lookup tables.
        block_shapes: words of a block memory, by their width in bits.
        least_rom: bits that a read-only memory has to fill of each block; smaller ones are made
            of lookup tables.
        block_cost: what Yosys' `memory_libmap` takes a block for, of a memory that is written to.
        table_words: that one lookup table stores of one bit.
        small_rams: memories that a few lookup tables make together; none where lookup tables cannot
            be written to.
        logic: lookup tables in the place of one of 6 inputs, on average.
        input_registers: of each factor that a multiplier takes; it takes that of the product, too.
            Those of ECP5 `chop.hardware.folds.absorb` finds, where they have no enable.
        added: of sums of two products, the share that multipliers add up themselves, on average.
        soft_gates: lookup tables for each bit of the rows of a product of them, `soft_parts`: those
            that no sum takes in.
        absorbs_words: block memories take the register behind the word that is read, as
            `chop.hardware.folds.absorb` finds it.
    """

    dsp_width: int
    least_product: int
    block_shapes: Mapping[int, int]
    least_rom: int
    block_cost: float
    table_words: int
    small_rams: tuple[SmallRam, ...]
    logic: float
    input_registers: int
    added: float
    soft_gates: float
    absorbs_words: bool

    @property
    def has_multipliers(self) -> bool:
        """Whether products are made of anything else than lookup tables."""
        return self.dsp_width > 0


XC7 = Family(
    18,
    9,
    MappingProxyType({1: 16384, 2: 8192, 4: 4096, 9: 2048, 18: 1024, 36: 512}),
    36 * 512 // 2,
    129,
    64,
    (SmallRam(32, 6, 4, 8, 7), SmallRam(64, 3, 4, 8, 7)),
    0.55,
    2,
    0.5,
    0.5,
    False,
)
"""7-series of Xilinx; block memories are those of 18 Kbit."""
ECP5 = Family(
    18,
    4,
    MappingProxyType({1: 16384, 2: 8192, 4: 4096, 9: 2048, 18: 1024, 36: 512}),
    2049,
    128,
    16,
    (SmallRam(16, 4, 4, 4),),
    1.6,
    1,
    0.0,
    1.0,
    True,
)
ICE40 = Family(
    0,
    0,
    MappingProxyType({2: 2048, 4: 1024, 8: 512, 16: 256}),
    1024,
    0,
    16,
    (),
    1.6,
    0,
    0.0,
    1.0,
    False,
)
"""HX and LP: without multipliers."""


LARGE_CELLS = 30_000
"""Cells of a netlist from which on it is routed in the way of large ones."""


@dataclass(frozen=True)
class Router:
    """Open tools that place and route on a device.

    Attributes:
        tool: that places and routes, of Yosys' command `synth_FAMILY`.
        family: as Yosys calls it.
        flags: of the tool: size, speed grade and package.
        speed: grade, where a device has several.
        netlist: what the tool writes for the bitstream, and the option that asks for it.
        packer: makes the bitstream of that.
        large_flags: of the tool, more of them for netlists of `LARGE_CELLS` and more.
    """

    tool: str
    family: str
    flags: tuple[str, ...]
    speed: str
    netlist: str
    packer: str
    large_flags: tuple[str, ...] = ()


def _nextpnr_ecp5(size: str, package: str) -> Router:
    flags = (f"--{size}", "--package", package, "--speed", "6", "--lpf-allow-unconstrained")
    # router1, the default, had not ended on a netlist of 50,000 cells after an hour.
    large = ("--router", "router2")
    return Router("nextpnr-ecp5", "ecp5", flags, "6", "textcfg", "ecppack", large)


NEXTPNR_ICE40 = Router(
    "nextpnr-ice40", "ice40", ("--hx8k", "--package", "ct256"), "", "asc", "icepack"
)


@dataclass(frozen=True)
class Device:
    """What a design may take.

    Attributes:
        name: as it is typed.
        lut: lookup tables, of 6 inputs in the family XC7, else of 4.
        ff: flip-flops.
        dsp: multipliers.
        bram: block memories.
        family: what these can do; of a device without multipliers one that has none.
        router: places and routes on it; None where no open tool does.
    """

    name: str
    lut: int
    ff: int
    dsp: int
    bram: int
    family: Family = field(default=XC7, repr=False)
    router: Router | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.dsp:
            object.__setattr__(self, "family", replace(self.family, dsp_width=0))


DEVICES = {
    device.name: device
    for device in (
        Device("ice40-hx8k", 7_680, 7_680, 0, 32, ICE40, NEXTPNR_ICE40),
        Device("ecp5-25", 24_288, 24_288, 28, 56, ECP5, _nextpnr_ecp5("25k", "CABGA381")),
        Device("ecp5-45", 43_848, 43_848, 72, 108, ECP5, _nextpnr_ecp5("45k", "CABGA554")),
        Device("xc7a100t", 63_400, 126_800, 240, 270, XC7),
        Device("ecp5-85", 83_640, 83_640, 156, 208, ECP5, _nextpnr_ecp5("85k", "CABGA756")),
    )
}
"""By name, the smallest first."""


def parse_device(text: str) -> Device:
    """A device by its name, or by what it has: `lut=..,dsp=..,bram=..`, and `ff=..`.

    What has numbers alone is of the family XC7, with two flip-flops for each lookup table; with
    `dsp=0` it makes products of lookup tables.

    >>> parse_device("ecp5-85").dsp, parse_device("lut=1000,dsp=4,bram=2").ff
    (156, 2000)
    >>> parse_device("lut=1000,dsp=0,bram=2").family.has_multipliers
    False

    Raises:
        ConfigError: there is no such device, or a number is missing or no number.
    """
    if text in DEVICES:
        return DEVICES[text]
    if "=" not in text:
        raise ConfigError(
            f"device: got '{text}', which is not known; give what it has, as "
            f"lut=20000,dsp=40,bram=50 and perhaps ff=40000; {did_you_mean(text, DEVICES)}"
        )
    pairs = [part.partition("=") for part in text.split(",")]
    given = {key.strip(): value.strip() for key, _, value in pairs}
    wrong = [key for key, value in given.items() if key not in RESOURCES or not _counts(value)]
    missing = [name for name in ("lut", "dsp", "bram") if name not in given]
    if wrong or missing or len(pairs) != len(given):
        raise ConfigError(
            f"device: got '{text}': expected the numbers lut, dsp and bram, and ff if it is not "
            "twice lut, as in lut=20000,dsp=40,bram=50"
        )
    counts = {key: int(value) for key, value in given.items()}
    ff = counts.get("ff", 2 * counts["lut"])
    return Device(text, counts["lut"], ff, counts["dsp"], counts["bram"])


def _counts(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None
