"""Firmware of the SoC: sends test samples of a circuit's folder and prints the classes."""

import json
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("start.S", "main.c", "chop_driver.c")
TARGET = ("-target", "riscv32-freestanding-none", "-mcpu=generic_rv32+m", "-nostdlib")
FLAGS = ("-Os", "-Wall", "-Wextra", "-Werror")
PT_LOAD = 1
SAMPLES = """#include "chop_circuit.h"

enum {{ SAMPLES = {samples}, STREAMS = {streams} }};
{arrays}
static const char *const names[] = {{{names}}};
static const uint32_t elements[] = {{{elements}}};
static struct chop_stream streams[] = {{
{rows}
}};

static void load_sample(uint32_t sample) {{
{loads}
}}
"""
"""Samples, and the registers of each stream."""


def compile_firmware(folder, build, ports, samples):
    """Compiles the firmware with zig's clang; returns the words of its ROM.

    Args:
        folder: output folder of `chop emit`.
        build: folder with `csr.h` and `regions.ld` of the SoC.
        ports: ports of the circuit.
        samples: number of samples to send.
    """
    (build / "samples.h").write_text(samples_header(folder, ports, samples))
    binary = build / "firmware.elf"
    command = [sys.executable, "-m", "ziglang", "cc", *TARGET, *FLAGS]
    command += [f"-I{path}" for path in (build, HERE, folder / "board")]
    command += [f"-Wl,-T,{HERE / 'firmware.ld'}", "-o", str(binary)]
    sources = [str(HERE / name) for name in SOURCES]
    # The linker script reads regions.ld in the working folder.
    subprocess.run([*command, *sources], check=True, cwd=build)
    return rom_words(binary.read_bytes())


def read_samples(folder, port, samples):
    """Returns the codes of a port's first samples, elements in row-major order."""
    lines = (folder / "vectors" / f"{port.name}.hex").read_text().split()
    codes = json.loads((folder / "design.json").read_text())["codes"][port.name]
    if len(lines) < samples * port.beats:
        sys.exit(f"{folder} has {len(lines) // port.beats} test samples, fewer than {samples}.")
    sign = 1 << (port.width - 1)
    rows = []
    for start in range(0, samples * port.beats, port.beats):
        beats = [int(line, 16) for line in lines[start : start + port.beats]]
        values = [
            ((beat >> lane * port.width) % (2 * sign) ^ sign) - sign
            for beat in beats
            for lane in range(port.lanes)
        ]
        rows.append([values[place] for place in codes["positions"]])
    return rows


def samples_header(folder, ports, samples):
    """Returns C code with the codes of samples, and a stream for each port."""
    arrays, rows, loads = [], [], []
    for number, port in enumerate(ports):
        registers = f"CSR_CIRCUIT_{port.name.upper()}"
        row = f"&chop_port_{port.name}, {registers}_DATA_ADDR, {registers}_STATUS_ADDR"
        if port.is_input:
            codes = [", ".join(map(str, codes)) for codes in read_samples(folder, port, samples)]
            text = "},\n  {".join(codes)
            arrays.append(
                f"static const int32_t sent_{port.name}[][chop_elements_{port.name}] = {{\n"
                f"  {{{text}}}\n}};"
            )
            rows.append(f"  {{{row}, {registers}_LAST_ADDR, 0, 0, 0}},")
            loads.append(f"  streams[{number}].sent = sent_{port.name}[sample];")
        else:
            arrays.append(f"static int32_t received_{port.name}[chop_elements_{port.name}];")
            rows.append(f"  {{{row}, 0, 0, received_{port.name}, 0}},")
    return SAMPLES.format(
        samples=samples,
        streams=len(ports),
        arrays="\n".join(arrays),
        names=", ".join(f'"{port.name}"' for port in ports),
        elements=", ".join(f"chop_elements_{port.name}" for port in ports),
        rows="\n".join(rows),
        loads="\n".join(loads),
    )


def rom_words(elf):
    """Returns the 32-bit words that a 32-bit ELF file loads, from address 0."""
    (start,) = struct.unpack_from("<I", elf, 28)
    size, count = struct.unpack_from("<HH", elf, 42)
    memory = b""
    for header in range(start, start + size * count, size):
        kind, offset, _, address, length = struct.unpack_from("<5I", elf, header)
        if kind == PT_LOAD and length:
            memory = memory.ljust(address, b"\0") + elf[offset : offset + length]
    memory += b"\0" * (-len(memory) % 4)
    return [word for (word,) in struct.iter_unpack("<I", memory)]
