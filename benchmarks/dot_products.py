"""Circuits of a dot product in each format: multipliers, exponent logic and area by synthesis.

python benchmarks/dot_products.py [--out runs/dot-products] [--formats int8 mxint8 mxfp8]

Each circuit multiplies 32 pairs a cycle and adds the products. First it is simulated by Icarus on
random codes and compared: integers, MXINT8 and MXFP8 exactly, floats, whose products are aligned
to the largest and cut off below, within what is cut off. Then Yosys makes gates of it: transistors
of static CMOS (`stat -tech cmos`), before placement, without registers. What turns a sum into a
float and adds the blocks of a row is the same for all but int8, and not in it.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.files import write_text
from chop.base.tables import markdown_table, print_table
from chop.hardware.tools import read_command, require, tool_path

SOURCES = Path(__file__).resolve().parent / "dot_products"
LANES = 32
SAMPLES = 200
PARTS = {
    "signed_product": "multipliers",
    "mantissa_product": "multipliers",
    "left_shift": "alignment",
    "right_shift": "alignment",
    "exponent_sum": "exponents",
    "largest_exponent": "exponents",
    "block_exponent": "exponents",
    "adder_tree": "adders",
    "float_product": "exponents",
    "": "exponents",
}
"""Module -> what it counts as; signs of products, and gates of the top, are with the exponents."""
COLUMNS = ("multipliers", "exponents", "alignment", "adders")


@dataclass(frozen=True)
class Circuit:
    """A dot product in one format.

    Attributes:
        name: of the format.
        top: its module.
        exponent_bits: of an element; 0 for integers.
        mantissa_bits: of an element's fraction; of integers, all bits.
        parameters: of the module.
        block_exponents: whether 32 elements of each side share an exponent of 8 bits.
        window: bits that aligned products have; 0: they are exact.
    """

    name: str
    top: str
    exponent_bits: int
    mantissa_bits: int
    parameters: dict[str, int]
    block_exponents: bool = False
    window: int = 0

    @property
    def width(self) -> int:
        """Bits of an element."""
        fraction = self.mantissa_bits
        return 1 + self.exponent_bits + fraction if self.exponent_bits else fraction

    @property
    def stored_bits(self) -> float:
        """Bits of an element with its part of the block's exponent."""
        return self.width + 8 * self.block_exponents / LANES

    @property
    def multiplier(self) -> str:
        """What a lane multiplies."""
        bits = self.mantissa_bits + bool(self.exponent_bits)
        return f"{bits} x {bits}"

    @property
    def sum_bits(self) -> int:
        """Bits of the sum that leaves."""
        if self.window:
            return self.window + 1 + int(math.log2(LANES))
        if not self.exponent_bits:
            return 2 * self.width + int(math.log2(LANES))
        return 2 * self.mantissa_bits + 3 + 2 * (2**self.exponent_bits - 2) + int(math.log2(LANES))

    @property
    def result_exponent_bits(self) -> int:
        """Bits of the exponent that leaves."""
        return 9 if self.block_exponents or self.window else 2


def _float(name: str, exponent: int, mantissa: int, window: int) -> Circuit:
    parameters = {"E": exponent, "M": mantissa, "WINDOW": window}
    return Circuit(name, "dot_float", exponent, mantissa, parameters, window=window)


CIRCUITS = (
    Circuit("int8", "dot_integer", 0, 8, {"W": 8, "EXPONENT": 0}),
    Circuit("mxint8", "dot_integer", 0, 8, {"W": 8, "EXPONENT": 8}, True),
    Circuit("mxint4", "dot_integer", 0, 4, {"W": 4, "EXPONENT": 8}, True),
    Circuit("mxfp8 e4m3", "dot_small_float", 4, 3, {"E": 4, "M": 3}, True),
    _float("bfloat16", 8, 7, 24),
    _float("float32", 8, 23, 56),
)


def main() -> None:
    """Checks and synthesizes every circuit, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [circuit.name for circuit in CIRCUITS]
    parser.add_argument("--formats", nargs="+", default=names, choices=names)
    parser.add_argument("--out", type=Path, default=Path("runs/dot-products"))
    given = parser.parse_args()
    require("iverilog", "yosys")
    chosen = [circuit for circuit in CIRCUITS if circuit.name in given.formats]
    for circuit in chosen:
        print(f"{circuit.name}: largest error {check(circuit):.1e} of the largest product")
    found = {circuit.name: area(circuit) for circuit in chosen}
    base = sum(found.get("mxint8", next(iter(found.values()))).values())
    rows = [_row(circuit, found[circuit.name], base) for circuit in chosen]
    print_table(f"Dot product of {LANES} pairs, transistors", rows)
    write_text(given.out.with_suffix(".md"), markdown_table(rows) + "\n")


def _row(circuit: Circuit, parts: Counter[str], base: int) -> dict[str, Any]:
    total = sum(parts.values())
    return {
        "format": circuit.name,
        "bits": f"{circuit.stored_bits:g}",
        "multipliers (bits)": f"{LANES} of {circuit.multiplier}",
        "sum (bits)": circuit.sum_bits,
        **{name: f"{parts[name]:,}" for name in COLUMNS},
        "transistors": f"{total:,}",
        "of MXINT8": f"{total / base:.2f}",
    }


def check(circuit: Circuit, samples: int = SAMPLES) -> float:
    """Simulates random pairs.

    Args:
        circuit: what is simulated.
        samples: how many dot products.

    Returns: the largest |sum - exact sum|, over the largest |product| of the same pairs.

    Raises:
        AssertionError: it is more than the circuit cuts off.
    """
    draw = torch.Generator().manual_seed(0)
    shape = (2, samples, LANES)
    codes = torch.randint(0, 2**circuit.width, shape, generator=draw)
    if circuit.exponent_bits == 8:  # of like sizes, as numbers of one row are
        fraction = circuit.mantissa_bits
        middle = torch.randint(118, 136, shape, generator=draw) << fraction
        codes = codes & ~(255 << fraction) | middle
    scales = torch.randint(90, 160, (2, samples), generator=draw) * circuit.block_exponents
    values = _values(circuit, codes)
    products = values[0] * values[1]
    exact = products.sum(-1)
    told = list(_simulated(circuit, codes, scales))
    found = torch.tensor([_value(circuit, *pair) for pair in told], dtype=torch.float64)
    if circuit.block_exponents:
        exponents = [exponent for _, exponent in told]
        assert exponents == scales.sum(0).tolist()
    error = ((found - exact).abs() / products.abs().amax(-1)).max().item()
    # Less than one in the last place of each lane; the largest product fills the upper two places.
    cut = LANES * 2.0 ** (2 - circuit.window) if circuit.window else 0
    assert error <= cut, f"{circuit.name}: {error}"
    return error


def _values(circuit: Circuit, codes: Tensor) -> Tensor:
    """What codes mean without the exponents of blocks, in float64."""
    bits, fraction = circuit.width, circuit.mantissa_bits
    if not circuit.exponent_bits:
        return (codes - 2**bits * (codes >= 2 ** (bits - 1))).double()
    exponent = codes >> fraction & (2**circuit.exponent_bits - 1)
    magnitude = (codes & (2**fraction - 1)) + 2**fraction * (exponent > 0)
    sign = 1 - 2 * (codes >> (bits - 1))
    return (sign * magnitude).double() * torch.exp2(exponent.clamp(min=1).double() - 1)


def _value(circuit: Circuit, total: int, exponent: int) -> float:
    """What leaves the circuit, as `_values` counts."""
    if not circuit.window:
        return float(total)
    return total * 2.0 ** (exponent - 2 - (circuit.window - 2 * circuit.mantissa_bits - 2))


def _simulated(circuit: Circuit, codes: Tensor, scales: Tensor) -> Iterator[tuple[int, int]]:
    """Sums and exponents of the circuit in Icarus."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, rows, exponents in zip("ab", codes.tolist(), scales.tolist(), strict=True):
            words = [sum(c << circuit.width * k for k, c in enumerate(row)) for row in rows]
            write_text(folder / f"{side}.hex", "\n".join(f"{word:x}" for word in words) + "\n")
            lines = "\n".join(f"{exponent:x}" for exponent in exponents)
            write_text(folder / f"{side}_exponent.hex", lines + "\n")
        write_text(folder / "testbench.sv", _testbench(circuit, codes.shape[1]))
        built = ["iverilog", "-g2012", "-o", "testbench", "testbench.sv", *_sources()]
        subprocess.run(built, cwd=folder, check=True)
        done = subprocess.run(["vvp", "testbench"], cwd=folder, check=True, capture_output=True)
    for line in re.findall(r"^= (.*)", done.stdout.decode(), re.MULTILINE):
        total, exponent = (int(word, 16) for word in line.split())
        yield total - (total >> (circuit.sum_bits - 1) << circuit.sum_bits), exponent


def _testbench(circuit: Circuit, samples: int) -> str:
    wide = LANES * circuit.width
    parameters = ", ".join(f".{name}({value})" for name, value in circuit.parameters.items())
    scaled = circuit.top != "dot_float"
    ports = ", .a_exponent_i(a_exponent[k]), .b_exponent_i(b_exponent[k])" if scaled else ""
    bits = 8 if circuit.block_exponents else 1
    return f"""module testbench;
  logic [{wide - 1}:0] a [{samples}], b [{samples}];
  logic [{bits - 1}:0] a_exponent [{samples}], b_exponent [{samples}];
  wire [{circuit.sum_bits - 1}:0] sum;
  wire [{circuit.result_exponent_bits - 1}:0] exponent;
  int k = 0;
  {circuit.top} #(.N({LANES}), {parameters}) dut (
    .a_i(a[k]), .b_i(b[k]){ports}, .sum_o(sum), .exponent_o(exponent));
  initial begin
    $readmemh("a.hex", a); $readmemh("b.hex", b);
    $readmemh("a_exponent.hex", a_exponent); $readmemh("b_exponent.hex", b_exponent);
    for (k = 0; k < {samples}; k++) begin #1; $display("= %h %h", sum, exponent); end
  end
endmodule
"""


def _sources() -> list[str]:
    return [str(path) for path in sorted(SOURCES.glob("*.sv"))]


def area(circuit: Circuit) -> Counter[str]:
    """Transistors by Yosys, for each of `COLUMNS`."""
    values = "".join(f" -set {name} {value}" for name, value in circuit.parameters.items())
    script = (
        f"{read_command([Path(path) for path in _sources()])}; chparam -set N {LANES}{values} "
        f"{circuit.top}; hierarchy -top {circuit.top}; synth -top {circuit.top}; abc -g cmos4; "
        "stat -tech cmos"
    )
    command = [tool_path("yosys"), "-p", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _by_part(done.stdout[done.stdout.rindex("Printing statistics") :], circuit.top)


def _by_part(text: str, top: str) -> Counter[str]:
    sections = re.split(r"^=== (.+) ===$", text, flags=re.MULTILINE)[1:]
    modules = dict(zip(sections[::2], sections[1::2], strict=True))
    modules.pop("design hierarchy", None)

    def parts(name: str) -> Counter[str]:
        body = modules[name]
        count = re.search(r"Estimated number of transistors: +(\d+)", body)
        word = re.search(r"\\(\w+)", name)
        kind = word[1] if word else name
        found = Counter({PARTS.get(kind, PARTS[""]): int(count[1]) if count else 0})
        for cell, number in re.findall(r"^ {5}(\S+) +(\d+)$", body, re.MULTILINE):
            if cell in modules:
                found.update({k: int(number) * v for k, v in parts(cell).items()})
        return found

    (whole,) = [name for name in modules if name == top or name.endswith(f"\\{top}")] or [top]
    return parts(whole)


if __name__ == "__main__":
    main()
