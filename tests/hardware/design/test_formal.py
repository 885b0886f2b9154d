"""Bounded formal checks of every stream component, with free data, stalls and first states."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from chop.hardware.design.plan import RTL, Memory
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import sources
from tests.hardware.bench import needs_tools
from tests.hardware.formal import Proof, failed_assertions, z3_path
from tests.hardware.formal_wrappers import (
    AXI_LITE,
    AXIS_IN,
    AXIS_OUT,
    CACHE,
    CREDITS,
    FORK,
    LOAD,
)

needs_z3 = pytest.mark.skipif(z3_path() is None, reason="needs z3: pip install z3-solver")
PAGE = Path(__file__).parents[3] / "benchmarks/results/circuit-proofs.md"
WINDOW = {"IN_W": 1, "IN_HEIGHT": 3, "IN_WIDTH": 2, "KERNEL_Y": 2, "KERNEL_X": 2, "OUT_HEIGHT": 2}
WINDOW |= {"OUT_WIDTH": 1, "STRIDE_Y": 1, "STRIDE_X": 1, "RING": 4}


def memory(width, words):
    """Words that are drawn once, any of them."""
    draw = random.Random(width * words)
    return Memory(tuple(draw.getrandbits(width) for _ in range(words)), width)


def proof(module, inputs, outputs, cycles, order=(), memories=None, **parameters):
    """The check of a module whose streams have the usual names.

    Args:
        module: name.
        inputs: for each of them, bits of a beat and number of beats.
        outputs: the same.
        cycles: cycles with stalls, and all cycles.
        order: as in `Proof`.
        memories: width and number of words by parameter.
        parameters: of the module.
    """
    sides = (("in", inputs, True), ("out", outputs, False))
    ports = [
        Port(f"data_{side}_{k}", 1, bits, beats, is_input)
        for side, streams, is_input in sides
        for k, (bits, beats) in enumerate(streams)
    ]
    files = {name: memory(*size) for name, size in (memories or {}).items()}
    return Proof(module, parameters, ports, *cycles, order, files)


def beats(*numbers):
    return [(0, number) for number in numbers]


def wrapped(module, wrapper, count, order, outputs=1, cycles=(12, 24)):
    ports = [Port("data_in_0", 1, 2, count, True)]
    ports += [Port(f"data_out_{k}", 1, 2, count, False) for k in range(outputs)]
    return Proof(module, {}, ports, *cycles, order, wrapper=wrapper)


WORDS = memory(3, 3)
BUFFERS = {
    "wires": proof("chop_wires", [(2, 6)], [(2, 6)], (12, 20), beats(*range(6)), W=2),
    "skid": proof("chop_skid", [(2, 8)], [(2, 8)], (16, 26), beats(*range(8)), W=2),
    "fifo_skid": proof("chop_fifo", [(2, 6)], [(2, 6)], (12, 20), beats(*range(6)), W=2, DEPTH=1),
    "fifo": proof("chop_fifo", [(2, 8)], [(2, 8)], (14, 28), beats(*range(8)), W=2, DEPTH=5),
    "fifo_large": proof("chop_fifo", [(1, 6)], [(1, 6)], (12, 24), beats(*range(6)), W=1, DEPTH=50),
    "fork": wrapped("chop_fork", FORK, 6, beats(*range(6)), 3),
    "credits": wrapped("chop_credits", CREDITS, 8, beats(*range(8)), cycles=(14, 32)),
    "axis_in": wrapped("chop_axis_in", AXIS_IN, 6, beats(*range(6))),
    "axis_out": wrapped(
        "chop_axis_out", AXIS_OUT.replace("OUT;", "tdata[1:0];"), 6, beats(*range(6))
    ),
    "axis_out_last": wrapped(
        "chop_axis_out",
        AXIS_OUT.replace("OUT;", "{keep && tdata[7:2] == 0, last};"),
        6,
        [2, 2, 3, 2, 2, 3],
    ),
    "downsize": proof(
        "chop_downsize",
        [(6, 3)],
        [(2, 9)],
        (14, 28),
        beats(*range(9)),
        W=1,
        IN_LANES=6,
        OUT_LANES=2,
    ),
    "upsize": proof(
        "chop_upsize", [(2, 9)], [(6, 3)], (14, 28), beats(*range(3)), W=1, IN_LANES=2, OUT_LANES=6
    ),
    "concat": proof(
        "chop_concat",
        [(2, 6), (2, 3)],
        [(2, 9)],
        (14, 28),
        [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (0, 4), (0, 5), (1, 2)],
        LANES=1,
        IN_0_W=2,
        IN_1_W=2,
        OUT_W=2,
        BEATS_0=2,
        BEATS_1=1,
    ),
    "concat_of_a_constant": proof(
        "chop_concat",
        [(2, 6), (2, 3)],
        [(2, 9)],
        (14, 28),
        [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (0, 4), (0, 5), (1, 2)],
        LANES=1,
        IN_0_W=2,
        IN_1_W=2,
        OUT_W=2,
        BEATS_0=2,
        BEATS_1=1,
        WAITS=1,
    ),
    "select": proof(
        "chop_select",
        [(2, 10)],
        [(2, 4)],
        (14, 28),
        beats(1, 2, 6, 7),
        W=2,
        PERIOD=5,
        FIRST=1,
        LAST=2,
    ),
    "copies": proof(
        "chop_copies",
        [(2, 4)],
        [(2, 12)],
        (14, 36),
        beats(*[0, 1] * 3, *[2, 3] * 3),
        W=2,
        BEATS=2,
        TIMES=3,
    ),
    "reorder": proof(
        "chop_reorder",
        [(2, 8)],
        [(2, 12)],
        (14, 40),
        [(0, 0), (0, 2), 0, (0, 1), (0, 3), 0, (0, 4), (0, 6), 0, (0, 5), (0, 7), 0],
        W=2,
        WORDS=4,
        COUNT_0=3,
        STEP_0=2,
        LAST_0=1,
        COUNT_1=2,
        STEP_1=1,
    ),
    "constant": Proof(
        "chop_constant",
        {"W": 3, "BEATS": 3},
        [Port("data_out_0", 1, 3, 7, False)],
        12,
        32,
        WORDS.words * 2 + WORDS.words[:1],
        {"FILE": WORDS},
        is_endless=True,
    ),
    "load": Proof(
        "chop_load",
        {},
        [Port("data_in_0", 1, 2, 3, True), Port("data_out_0", 1, 2, 7, False)],
        12,
        32,
        beats(*[0, 1, 2] * 2, 0),
        wrapper=LOAD,
        is_endless=True,
    ),
    "axi_lite": replace(
        proof("chop_axi_lite", [(3, 3), (2, 3), (1, 2)], [(2, 3), (3, 2)], (8, 30)),
        wrapper=AXI_LITE,
    ),
}
LINEAR = {"IN_FEATURES": 2, "OUT_FEATURES": 2, "IN_W": 2, "BIAS_W": 2}
LINEAR_FILES = {"WEIGHT_FILE": (2, 4), "BIAS_FILE": (2, 2)}
SOFTMAX = {"TABLE_W": 2, "POWER": 4, "OUT_W": 6, "DEPTH": 6}
NORM = {"RADICAND_W": 4, "ROOT": 1, "POWER": 4, "FRACTION": 1, "LIMIT": 3, "LIMIT_W": 3}
NORM |= {"IN_W": 1, "WEIGHT_W": 1, "BIAS_W": 1, "OUT_W": 4, "DEPTH": 6}
OPERATORS = {
    "add": proof(
        "chop_add", [(2, 4), (4, 4)], [(6, 4)], (10, 18), LANES=2, IN_0_W=1, IN_1_W=2, OUT_W=3
    ),
    "mul": proof("chop_mul", [(2, 4), (2, 4)], [(4, 4)], (10, 18), IN_0_W=2, IN_1_W=2, OUT_W=4),
    "negate": proof("chop_negate", [(2, 5)], [(3, 5)], (12, 20), IN_W=2, OUT_W=3),
    "relu": proof("chop_relu", [(2, 5)], [(2, 5)], (12, 20), IN_W=2, OUT_W=2),
    "round": proof(
        "chop_round", [(4, 5)], [(2, 5)], (12, 20), IN_W=4, OUT_W=2, SHIFT=1, LOW=-2, HIGH=1
    ),
    "scale": proof("chop_scale", [(2, 6)], [(4, 6)], (12, 28), IN_W=2, OUT_W=4, FACTOR=3),
    "table": proof(
        "chop_table",
        [(2, 6)],
        [(2, 6)],
        (12, 28),
        (),
        {"TABLE_FILE": (2, 4)},
        IN_W=2,
        OUT_W=2,
        LOW=-2,
        ENTRIES=4,
    ),
    "embedding": proof(
        "chop_embedding",
        [(3, 3)],
        [(2, 6)],
        (12, 28),
        (),
        {"TABLE_FILE": (2, 8)},
        ROWS=4,
        BEATS=2,
        IN_W=3,
        OUT_W=2,
    ),
    "position": proof("chop_position", [(1, 6)], [(2, 6)], (12, 20), LENGTH=3, IN_W=1, OUT_W=2),
    "cached_matmul": replace(
        proof("chop_cached_matmul", [(1, 4), (1, 2), (1, 4)], [(3, 4)], (8, 36)), wrapper=CACHE
    ),
    "affine": proof(
        "chop_affine",
        [(2, 6)],
        [(5, 6)],
        (12, 30),
        (),
        {"FILE": (4, 2)},
        IN_W=2,
        OUT_W=5,
        FACTOR_W=2,
        SHIFT_W=2,
        WORDS=2,
    ),
    "prelu": proof(
        "chop_prelu",
        [(2, 6)],
        [(4, 6)],
        (12, 30),
        (),
        {"FILE": (2, 2)},
        IN_W=2,
        OUT_W=4,
        FACTOR_W=2,
        WORDS=2,
    ),
    "thresholds": proof(
        "chop_thresholds",
        [(2, 6)],
        [(2, 6)],
        (12, 30),
        (),
        {"FILE": (7, 2)},
        IN_W=2,
        OUT_W=2,
        THRESHOLDS=2,
        WORDS=2,
    ),
    "requantize": proof(
        "chop_requantize",
        [(3, 6)],
        [(2, 6)],
        (12, 34),
        (),
        {"CHANNEL_FILE": (2, 2)},
        IN_W=3,
        OUT_W=2,
        MULTIPLIES=1,
        PRODUCT_W=6,
        CHANNEL_W=2,
        CHANNEL_BEATS=2,
        SHIFT=2,
        LOW=-2,
        HIGH=1,
    ),
    "requantize_blocks": proof(
        "chop_requantize_blocks",
        [(3, 6)],
        [(4, 6)],
        (10, 38),
        FEATURES=3,
        BLOCK=2,
        IN_W=3,
        OUT_W=4,
        BASE=0,
        WINDOW=2,
        SHIFT=2,
        LIMIT=1,
    ),
    "split_block": proof(
        "chop_split_block", [(6, 5)], [(5, 5)], (12, 28), LANES=2, IN_W=3, CODE_W=2, SHIFT_W=1
    ),
    "sum": proof("chop_sum", [(2, 8)], [(3, 4)], (14, 28), IN_W=2, OUT_W=3, COUNT=2, INNER=2),
    "maximum": proof(
        "chop_sum",
        [(4, 6)],
        [(2, 3)],
        (14, 28),
        LANES=2,
        IN_W=2,
        OUT_W=2,
        COUNT=2,
        ACROSS=1,
        MAXIMUM=1,
    ),
    "taps": proof("chop_taps", [(6, 4)], [(4, 4)], (12, 22), N=3, IN_W=2, OUT_W=4),
    "isqrt": proof("chop_isqrt", [(4, 3)], [(2, 3)], (12, 28), IN_W=4),
    "reciprocal": proof("chop_reciprocal", [(2, 3)], [(4, 3)], (12, 34), POWER=3, IN_W=2, OUT_W=4),
    "linear": proof(
        "chop_linear", [(2, 4)], [(5, 4)], (12, 38), (), LINEAR_FILES, **LINEAR, WEIGHT_W=2, OUT_W=5
    ),
    "ternary_linear": proof(
        "chop_ternary_linear", [(2, 4)], [(4, 4)], (12, 38), (), LINEAR_FILES, **LINEAR, OUT_W=4
    ),
    "block_linear": proof(
        "chop_block_linear",
        [(3, 4)],
        [(8, 4)],
        (10, 42),
        (),
        {"WEIGHT_FILE": (3, 4), "BIAS_FILE": (2, 2)},
        **(LINEAR | {"IN_W": 3}),
        CODE_W=2,
        SHIFT_W=1,
        WEIGHT_W=2,
        WEIGHT_SHIFT_W=1,
        OUT_W=8,
    ),
    "matmul": proof(
        "chop_matmul",
        [(1, 8), (1, 8)],
        [(3, 8)],
        (10, 48),
        ROWS=2,
        IN_FEATURES=2,
        OUT_FEATURES=2,
        IN_0_W=1,
        IN_1_W=1,
        OUT_W=3,
    ),
    "window": proof("chop_window", [(1, 12)], [(2, 8)], (12, 46), **WINDOW, TAP_LANES=2),
    "max_pool": proof("chop_max_pool", [(1, 12)], [(1, 4)], (12, 46), **WINDOW, TAP_LANES=2),
    "avg_pool": proof(
        "chop_avg_pool", [(1, 12)], [(3, 4)], (12, 46), **WINDOW, TAP_LANES=2, OUT_W=3
    ),
    "depthwise_conv": proof(
        "chop_depthwise_conv",
        [(1, 12)],
        [(5, 4)],
        (12, 50),
        (),
        {"WEIGHT_FILE": (4, 2), "BIAS_FILE": (2, 1)},
        **WINDOW,
        TAP_LANES=2,
        WEIGHT_W=2,
        BIAS_W=2,
        OUT_W=5,
    ),
    "conv": proof(
        "chop_conv",
        [(1, 6)],
        [(5, 4)],
        (10, 50),
        (),
        {"WEIGHT_FILE": (4, 4), "BIAS_FILE": (2, 2)},
        **WINDOW,
        TAP_LANES=2,
        IN_LANES=2,
        OUT_FEATURES=2,
        WEIGHT_W=2,
        BIAS_W=2,
        OUT_W=5,
    ),
    "softmax": proof(
        "chop_softmax",
        [(2, 4)],
        [(6, 4)],
        (10, 44),
        (),
        {"TABLE_FILE": (2, 4)},
        FEATURES=2,
        IN_W=2,
        TABLE_DEPTH=4,
        **SOFTMAX,
    ),
    "masked_softmax": proof(
        "chop_masked_softmax",
        [(1, 4), (1, 2)],
        [(6, 4)],
        (10, 48),
        (),
        {"TABLE_FILE": (2, 4)},
        FEATURES=2,
        ROWS=2,
        QUERIES=2,
        SCORE_W=1,
        MASK_W=1,
        IN_W=2,
        HIDDEN=-2,
        TABLE_DEPTH=4,
        **SOFTMAX,
    ),
    "layer_norm": proof(
        "chop_layer_norm",
        [(1, 4)],
        [(4, 4)],
        (8, 54),
        (),
        {"WEIGHT_FILE": (1, 2), "BIAS_FILE": (1, 2)},
        LANES=1,
        FEATURES=2,
        **NORM,
    ),
}
PROOFS = BUFFERS | OPERATORS


@needs_z3
@needs_tools
@pytest.mark.long
@pytest.mark.parametrize("name", PROOFS)
def test_no_beat_is_lost_changed_or_withdrawn(name, tmp_path):
    assert failed_assertions(PROOFS[name], tmp_path) == ""


FAULTS = {
    "no_reset": (
        "skid",
        "      skid_valid_q       <= 1'b0;\n    end else if (moves)",
        "    end else if (moves)",
    ),
    "data_not_held": (
        "select",
        "if (data_in_0_ready_o) data_out_0_o <= data_in_0_i;",
        "data_out_0_o <= data_in_0_i;",
    ),
    "one_beat_too_many": ("fifo", "!= COUNT_W'(WORDS))", "!= COUNT_W'(WORDS + 1))"),
    "cast_as_yosys_reads_it": ("window", "Y_W'(-needed(0))", "-Y_W'(needed(0))"),
}
"""By name: a proof, a text of its module, and the fault that replaces it."""


@needs_z3
@needs_tools
@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, tmp_path):
    proof, old, new = FAULTS[name]
    module = PROOFS[proof].module
    text = (RTL / f"{module}.sv").read_text()
    assert text.count(old) == 1
    (tmp_path / f"{module}.sv").write_text(text.replace(old, new))
    (tmp_path / "run").mkdir()
    assert "Assert failed" in failed_assertions(PROOFS[proof], tmp_path / "run", tmp_path)


def test_every_component_with_a_stream_is_checked():
    checked = {proof.module for proof in PROOFS.values()}
    for proof in PROOFS.values():
        checked |= {Path(name).stem for name in sources(proof.text())}
    streams = {
        path.stem
        for path in RTL.glob("*.sv")
        if re.search(r"^ +(?:in|out)put .*(?:valid|ready)_[io],?$", path.read_text(), re.MULTILINE)
        and "for simulation only" not in " ".join(path.read_text().split()).replace("// ", "")
    }
    assert len(streams) > 40 and streams <= checked


def table():
    """Rows of the table on the page, sorted by name."""
    for name, each in sorted(PROOFS.items()):
        sides = [[p for p in each.ports if p.is_input is side] for side in (True, False)]
        streams = (
            ", ".join(f"{port.beats} of {port.bits}" for port in ports) or "none" for ports in sides
        )
        values = " ".join(f"{key}={value}" for key, value in each.parameters.items())
        against = "beats in" if each.order else "unstalled"
        cells = (name, f"`{each.module}`", values or "in a wrapper", *streams, against, each.free)
        yield "| " + " | ".join(map(str, (*cells, each.depth))) + " |"


def test_the_page_lists_every_proof():
    text = PAGE.read_text()
    assert [row for row in text.splitlines() if row.startswith("| ")][2:] == list(table())


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201
