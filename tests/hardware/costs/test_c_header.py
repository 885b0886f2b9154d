"""C header of the ports, and the driver of `examples/litex` with it, on registers in software."""

import random
import subprocess
from pathlib import Path

import pytest
import torch

from chop.hardware.check.project import PortCodes, Project
from chop.hardware.costs.board import write_board
from chop.hardware.design.load import REGISTERS, Load, LoadableMemory
from chop.hardware.design.plan import Memory
from chop.hardware.design.port import Port

pytestmark = pytest.mark.tools("cc")
LITEX = Path(__file__).resolve().parents[3] / "examples/litex"
SHAPE = (2, 3, 4)
SENT, RECEIVED = Port("pixels", 8, 5, 3, True), Port("scores", 3, 32, 2, False)
"""Beats of 40 and 96 bits: a code across two words, and three words."""
HEAD = """
#include <stdint.h>
uint32_t read_model(uintptr_t address);
void write_model(uintptr_t address, uint32_t value);
#define CHOP_READ read_model
#define CHOP_WRITE write_model
"""
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "chop_driver.h"

enum { INPUT = 0x100, OUTPUT = 0x200, STATUS = 16, LAST = 20, ERROR = 0x300 };
static uint32_t words[3 * 2], taken, polls;
static int has_last, is_stuck;

uint32_t read_model(uintptr_t address) {
  if (address == ERROR) return 0;
  if (address == INPUT + STATUS) return ++polls % 3 == 0;
  if (address == OUTPUT + STATUS) {
    int is_last = taken == 3 && has_last;
    return ++polls % 5 == 0 && !is_stuck ? CHOP_READY | (is_last ? CHOP_LAST : 0) : 0;
  }
  uint32_t word = words[taken++];
  return address == OUTPUT + 4 * ((taken - 1) % 3) ? word : 0xdeadbeef;
}

void write_model(uintptr_t address, uint32_t value) { printf("%lx %x\\n", (long)address, value); }

int main(int count, char **arguments) {
  (void)count;
  int32_t sent[chop_elements_pixels], received[chop_elements_scores];
  for (int k = 0; k < chop_elements_pixels; k++) sent[k] = atoi(*++arguments);
  for (int k = 0; k < 6; k++) words[k] = strtoul(*++arguments, 0, 16);
  has_last = atoi(*++arguments);
  is_stuck = atoi(*++arguments);
  struct chop_stream streams[] = {
    {&chop_port_pixels, INPUT, INPUT + STATUS, INPUT + LAST, sent, 0, 0},
    {&chop_port_scores, OUTPUT, OUTPUT + STATUS, 0, 0, received, 0},
  };
  printf("%d\\n", chop_run(streams, 2, ERROR, 100));
  for (int k = 0; k < chop_elements_scores; k++) printf("%d\\n", received[k]);
  printf("%d\\n", chop_largest(received, chop_elements_scores));
}
"""


@pytest.fixture(scope="module")
def positions():
    """Places of an image's elements in a stream that sends channels last."""
    places = torch.empty(SHAPE, dtype=torch.long)
    places.permute(1, 2, 0).copy_(torch.arange(24).reshape(3, 4, 2))
    return tuple(places.flatten().tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, positions):
    """A folder with the header of a circuit, and a program that calls the driver."""
    folder = tmp_path_factory.mktemp("driver")
    codes = {
        "pixels": PortCodes("x", 0.25, -16, 15, 1, SHAPE, positions),
        "scores": PortCodes("y", (0.5, 0.25), -(2**31), 2**31 - 1, 3, (6,), tuple(range(6))),
    }
    project = Project("top", (SENT, RECEIVED), (), 1, codes)
    write_board(folder, project, 100.0, "ecp5-85")
    (folder / "head.h").write_text(HEAD)
    (folder / "main.c").write_text(PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    command = ["cc", *flags, "-include", "head.h", f"-I{LITEX}", "-Iboard", "-o", "program"]
    command += ["main.c", str(LITEX / "chop_driver.c")]
    subprocess.run(command, check=True, cwd=folder)
    return folder


def run(folder, sent, received, has_last=1, is_stuck=0):
    """Returns the words that the driver writes, its result, codes and class."""
    words = [f"{value >> bit & 0xFFFFFFFF:x}" for value in received for bit in (64, 32, 0)]
    command = ["./program", *map(str, sent), *words, str(has_last), str(is_stuck)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    lines = done.stdout.splitlines()
    written = [tuple(int(word, 16) for word in line.split()) for line in lines[:-8]]
    return written, *map(int, lines[-8:])


def test_the_driver_packs_and_unpacks_codes_across_words(folder, positions):
    draw = random.Random(0)
    sent = [draw.randint(-16, 15) for _ in range(24)]
    scores = [draw.randint(-(2**31), 2**31 - 1) for _ in range(6)]
    beats = [
        sum((code & 0xFFFFFFFF) << 32 * lane for lane, code in enumerate(scores[start : start + 3]))
        for start in (0, 3)
    ]
    written, result, *codes = run(folder, sent, beats)
    assert result == 0 and codes == [*scores, scores.index(max(scores))]
    stream = [sent[positions.index(place)] & 31 for place in range(24)]
    expected = []
    for beat in range(3):
        value = sum(code << 5 * lane for lane, code in enumerate(stream[8 * beat : 8 * beat + 8]))
        expected += [(0x114, int(beat == 2)), (0x100, value >> 32), (0x104, value & 0xFFFFFFFF)]
    assert written == expected


def test_the_driver_reports_a_missing_tlast_and_a_circuit_that_does_not_answer(folder):
    assert run(folder, [0] * 24, [1, 2], has_last=0)[1] == 2
    assert run(folder, [0] * 24, [1, 2], is_stuck=1)[1] == 1


def test_the_header_explains_ports_and_lists_an_order_only_where_it_differs(folder):
    text = (folder / "board/chop_circuit.h").read_text()
    assert "// Input pixels: 2 x 3 x 4. Codes: -16 to 15.\n// Value of a code: 0.25.\n" in text
    assert "// Value of a code: by channel, codes.scores.step in design.json / 3.\n" in text
    assert "chop_port_pixels = {8, 5, 3, chop_order_pixels};" in text
    assert "chop_port_scores = {3, 32, 2, 0};" in text and "chop_order_scores" not in text


@pytest.mark.parametrize(("wrapper", "count"), [("top_axi_lite", len(REGISTERS)), ("top_axis", 0)])
def test_circuits_with_registers_have_their_addresses(tmp_path, wrapper, count):
    codes = {"x": PortCodes("x", 0.25, -16, 15, 1, (3,), (0, 1, 2))}
    project = Project("top", (Port("x", 1, 5, 3, True),), (), 1, codes, wrapper=wrapper)
    write_board(tmp_path, project, 100.0, "ecp5-85")
    memory = LoadableMemory("first", "WEIGHT_FILE", Memory((1, 2), 40, is_loadable=True), 0)
    (tmp_path / "weights.h").write_text(Load([memory]).header())
    names = ", ".join(f"CHOP_{name.upper()}" for name, _, _ in REGISTERS[:count])
    text = f'#include "board/chop_circuit.h"\n#include "weights.h"\nint all[] = {{{names or 0}}};'
    done = subprocess.run(
        ["cc", "-E", "-P", "-xc", "-"], input=text, cwd=tmp_path, text=True, capture_output=True
    )
    assert done.stderr == ""  # equal definitions in both headers
    last = done.stdout.strip().splitlines()[-1]
    addresses = ", ".join(f"0x{address:x}u" for _, address, _ in REGISTERS[:count])
    assert last == f"int all[] = {{{addresses or 0}}};"
    header = (tmp_path / "board/chop_circuit.h").read_text()
    assert header.count("#define CHOP_") == count + 1
