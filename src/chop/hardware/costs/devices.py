"""FPGA devices and their resources.

The numbers come from public data sheets: Lattice, "ECP5 and ECP5-5G Family Data Sheet"
(FPGA-DS-02012), table 1.1 (nextpnr counts 24,288, 43,848 and 83,640 lookup tables on the three
devices); Lattice, "iCE40 LP/HX Family Data Sheet" (FPGA-DS-02029), table 1.1; Xilinx, "7 Series
FPGAs Overview" (DS180), table "Artix-7".
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
    """A memory built from a few lookup tables.

    Attributes:
        words: number of words.
        width: bits of a word.
        luts: lookup tables that it uses.
        cost: cost in Yosys' `memory_libmap`.
        by_width: part of the cost that is saved if the width is not fully used.
    """

    words: int
    width: int
    luts: int
    cost: float
    by_width: float = 0.0


@dataclass(frozen=True)
class Family:
    """Capabilities of a device family.

    Attributes:
        dsp_width: bits of each factor of a signed multiplier, as circuits use it; 0 if the family
            has no multipliers and builds products from lookup tables.
        least_product: products with fewer bits are built from lookup tables.
        block_shapes: words of a block memory, by their width in bits.
        least_rom: bits that a read-only memory has to fill of each block. Smaller ones are built
            from lookup tables.
        block_cost: cost of a block in Yosys' `memory_libmap`, for a memory with a write port.
        table_words: number of 1-bit words that one lookup table stores.
        small_rams: memories built from a few lookup tables; empty if these are not writable.
        logic: mean number of lookup tables that replace one with 6 inputs.
        input_registers: a multiplier includes a register for each factor in addition to that of the
            product. On ECP5, `chop.hardware.folds.absorb` uses them if they have no enable.
        added: share of the sums of two products that multipliers compute themselves.
        soft_gates: lookup tables for each bit of the partial-product rows that no sum absorbs, in a
            product built from lookup tables, see `soft_parts`.
        absorbs_words: block memories include the output register, see
            `chop.hardware.folds.absorb`.
        title: name of the family.
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
    title: str

    @property
    def has_multipliers(self) -> bool:
        """True if the family has multipliers, False if products are built from lookup tables."""
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
    1.0,
    0.5,
    False,
    "Xilinx 7 series",
)
"""Xilinx 7 series, with block memories of 18 Kbit."""
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
    "Lattice ECP5",
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
    "Lattice iCE40",
)
"""Lattice HX and LP, which have no multipliers."""


LARGE_CELLS = 30_000
"""Netlist cells above which the router's flags for large designs are used."""


@dataclass(frozen=True)
class Router:
    """Open-source tools that place and route a design on a device.

    Attributes:
        tool: placer and router, for netlists of Yosys' command `synth_FAMILY`.
        family: family name in Yosys.
        flags: tool flags for size, speed grade and package.
        speed: speed grade, if the device has several.
        netlist: bitstream input that the tool writes, and the option for it.
        packer: program that writes the bitstream.
        pins: suffix of files with pin constraints, and the tool's option for them.
        large_flags: additional tool flags for netlists of `LARGE_CELLS` or more.
    """

    tool: str
    family: str
    flags: tuple[str, ...]
    speed: str
    netlist: str
    packer: str
    pins: str
    large_flags: tuple[str, ...] = ()


def _nextpnr_ecp5(size: str, package: str) -> Router:
    flags = (f"--{size}", "--package", package, "--speed", "6", "--lpf-allow-unconstrained")
    # router1, the default, does not finish a netlist of 50,000 cells within an hour.
    large = ("--router", "router2")
    return Router("nextpnr-ecp5", "ecp5", flags, "6", "textcfg", "ecppack", "lpf", large)


NEXTPNR_ICE40 = Router(
    "nextpnr-ice40", "ice40", ("--hx8k", "--package", "ct256"), "", "asc", "icepack", "pcf"
)


@dataclass(frozen=True)
class Device:
    """Resource limits of a design.

    Attributes:
        name: name on the command line.
        lut: lookup tables, with 6 inputs in the family XC7, otherwise 4.
        ff: flip-flops.
        dsp: multipliers.
        bram: block memories.
        family: capabilities of these. A device without multipliers has a family without them.
        router: place-and-route tools; None if no open tool supports the device.
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
            # The class is frozen. A device without multipliers keeps the memories of its family.
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
"""Known devices by name, the smallest first."""


def parse_device(text: str) -> Device:
    """Parses a device name, or resources `lut=..,dsp=..,bram=..` with an optional `ff=..`.

    A list of resources describes a device of the family XC7, with two flip-flops per lookup table
    by default. With `dsp=0`, products are built from lookup tables.

    >>> parse_device("ecp5-85").dsp, parse_device("lut=1000,dsp=4,bram=2").ff
    (156, 2000)
    >>> parse_device("lut=1000,dsp=0,bram=2").family.has_multipliers
    False

    Raises:
        ConfigError: if the device is unknown, or a number is missing or invalid.
    """
    if text in DEVICES:
        return DEVICES[text]
    if "=" not in text:
        raise ConfigError(
            f"device: got '{text}', expected a device, or resources such as "
            f"lut=20000,dsp=40,bram=50 with an optional ff=40000; {did_you_mean(text, DEVICES)}"
        )
    pairs = [part.partition("=") for part in text.split(",")]
    given = {key.strip(): value.strip() for key, _, value in pairs}
    wrong = [key for key, value in given.items() if key not in RESOURCES or not _counts(value)]
    missing = [name for name in ("lut", "dsp", "bram") if name not in given]
    if wrong or missing or len(pairs) != len(given):
        raise ConfigError(
            f"device: got '{text}': expected the numbers lut, dsp, bram and optionally ff (twice "
            "lut by default), such as lut=20000,dsp=40,bram=50"
        )
    counts = {key: int(value) for key, value in given.items()}
    ff = counts.get("ff", 2 * counts["lut"])
    return Device(text, counts["lut"], ff, counts["dsp"], counts["bram"])


def _counts(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None
