"""Faults planted in the library are found by the comparison of codes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.port import Port
from chop.nn.integer import (
    Edge,
    Grid,
    IntegerMatmul,
    Requantize,
)
from tests.hardware import (
    mutants_of_blocks,
    mutants_of_rows,
    mutants_of_streams,
    mutants_of_windows,
)
from tests.hardware.bench import Driven, check, check_module, drawn, needs_tools
from tests.hardware.design.test_block_linear import block_layer
from tests.hardware.design.test_conv import convolution
from tests.hardware.design.test_linear import EDGE, layer, sign_layer
from tests.hardware.design.test_lookup import table
from tests.hardware.design.test_pool import image
from tests.hardware.faults import check_fault_is_found

pytestmark = needs_tools


def check_linear(folder):
    check(layer(4, 6), drawn(EDGE, 3, 6), fold=36)


def check_soft(folder):
    check(layer(4, 6), drawn(EDGE, 3, 6), fold=36, is_soft=True)
    check(layer(4, 6, weights=(-16, 15)), drawn(EDGE, 3, 6), fold=36, is_soft=True)


def check_odd_lanes(folder):
    check(layer(4, 3, weights=(-1, 1)), drawn(EDGE, 3, 3), fold=3)


def check_requantize(folder):
    """A mean of four codes, and channels whose multipliers are read beat by beat."""
    edge = Edge.of(1.0, -2000, 2000, divisor=4)
    codes = torch.arange(-2000, 2000, 7).view(-1, 1)
    near = torch.arange(-30, 30).view(-1, 1)
    check(Requantize(edge, Grid(1.0, -128, 127)), Driven(*drawn(edge, 1))._replace(codes=near))
    check(Requantize(edge, Grid(1.0, -128, 127)), Driven(*drawn(edge, 1))._replace(codes=codes))
    steps = torch.tensor([0.3, 0.1, 0.7], dtype=torch.float64)
    edge = Edge(steps, -1, -2000, 2000)
    check(Requantize(edge, Grid(1.0, -128, 127)), drawn(edge, 4, 3), fold=12)


def check_every_code(folder):
    edge, codes = Edge.of(1.0, -32, 31), torch.arange(-32, 32).view(-1, 1)
    check(Requantize(edge, Grid(2.0, -8, 7)), drawn(edge, 1)._replace(codes=codes))


def check_wide(folder):
    """A multiplier whose factors are cut into parts."""
    edge = Edge(torch.tensor(3.1e-10, dtype=torch.float64), -1, 1 - 2**50, 2**50)
    check(Requantize(edge, Grid(1.0, -(2**15), 2**15 - 1)), drawn(edge, 20), fold=20)


def check_embedding(folder):
    check(table(9, 4), drawn(Edge.of(1.0, 0, 8), 5), fold=10)


def check_block_linear(folder):
    operator, entered = block_layer(4, 16, size=8)
    check(operator, entered, fold=12)


def check_depthwise(folder):
    operator = convolution(nn.Conv2d(4, 4, (2, 3), padding=1, groups=4))
    check(operator, image(EDGE, 4, 4, 3), fold=200)


def check_groups(folder):
    operator = convolution(nn.Conv2d(4, 6, 2, groups=2))
    check(operator, image(EDGE, 4, 3, 4), fold=150)


def check_ternary(folder):
    check(layer(4, 6, weights=(-1, 1)), drawn(EDGE, 3, 6), fold=36)


def check_signs(folder):
    check(*sign_layer(4, 6, 0), fold=36)


def check_matmul(folder):
    a, b = drawn(EDGE, 3, 4), drawn(EDGE, 4, 5, seed=1)
    check(IntegerMatmul(EDGE, EDGE, 4), a, b, fold=60)


def check_conv(folder):
    operator = convolution(nn.Conv2d(1, 2, 3, padding=1))
    check(operator, image(EDGE, 1, 4, 5), fold=400)


def check_copies(module, **parameters):
    def run(folder):
        beats = drawn(EDGE, 60, 1, samples=1).codes[0]
        ports = [Port("data_in_0", 1, 8, 1, True), Port("data_out_0", 1, 8, 1, False)]
        check_module(module, {"W": 8, **parameters}, dict.fromkeys(ports, beats), folder=folder)

    return run


ROUND = "chop_round_saturate"
MUTANTS = {
    "floor": (ROUND, "&& half &&", "&& 1'b0 &&", check_requantize),
    "half_up": (ROUND, "((below != '0) || is_odd)", "1'b1", check_requantize),
    "no_sticky_bit": (ROUND, "((below != '0) || is_odd)", "is_odd", check_requantize),
    "no_saturation": (ROUND, "is_above_q ? OUT_W'(HIGH_64) :", "", check_requantize),
    "saturated_before_rounding": (
        ROUND,
        "? MOST : MOST - 1",
        "? MOST : MOST",
        check_every_code,
    ),
    "not_cleared": ("chop_matvec", "(first_q[STAGES-1] ? '0 : sum_q)", "sum_q", check_linear),
    "no_back_pressure": (
        "chop_credits",
        "ready_o <= !is_full;",
        "ready_o <= 1'b1;",
        check_linear,
    ),
    "credit_lost": (
        "chop_credits",
        "leaves && !starts_i",
        "leaves",
        check_linear,
    ),
    "credit_given_twice": (
        "chop_credits",
        "starts_i ? taken_q == COUNT_W'(PLACES - 1) :",
        "",
        check_requantize,
    ),
    "sums_without_a_place": ("chop_matvec", "(ready_i || !is_first_q)", "1'b1", check_linear),
    "weights_slip": ("chop_matvec", "= can_take && has_beat;", "= can_take;", check_linear),
    "row_lost": ("chop_repeat", "was_new_q <= is_new_q;", "was_new_q <= 1'b0;", check_linear),
    "bias_slips": (
        "chop_matvec",
        "finishes_o = valid_q[STAGES-2] &&",
        "finishes_o =",
        check_linear,
    ),
    "channels_slip": (
        "chop_requantize",
        ".takes_i(enters), .data_o(channel)",
        ".takes_i(data_in_0_ready_o), .data_o(channel)",
        check_requantize,
    ),
    "low_part_signed": (
        "chop_product",
        "{1'b0, a_i[i*PART +: PART]}",
        "{a_i[i*PART+PART-1], a_i[i*PART +: PART]}",
        check_wide,
    ),
    "word_too_late": (
        "chop_words",
        "data_o <= word;",
        "if (takes_i) data_o <= word;",
        check_linear,
    ),
    "skid_overwritten": (
        "chop_skid",
        "if (!skid_valid_q) skid_q",
        "skid_q",
        check_copies("chop_skid"),
    ),
    "fifo_overflows": (
        "chop_fifo",
        "(count_q != COUNT_W'(WORDS))",
        "1'b1",
        check_copies("chop_fifo", DEPTH=5),
    ),
    "fifo_loses": (
        "chop_fifo",
        "assign is_free = !data_out_0_valid_o || data_out_0_ready_i",
        "assign is_free = 1'b1",
        check_copies("chop_fifo", DEPTH=5),
    ),
    "large_fifo_loses": (
        "chop_fifo",
        "assign is_free = !has_word_q || moves",
        "assign is_free = 1'b1",
        check_copies("chop_fifo", DEPTH=50),
    ),
    "upsize_overwritten": (
        "chop_upsize",
        "= !data_out_0_valid_o || data_out_0_ready_i",
        "= 1'b1",
        check_copies("chop_upsize", OUT_LANES=1),
    ),
    "downsize_early": (
        "chop_downsize",
        "&& data_out_0_ready_i);",
        ");",
        check_copies("chop_downsize", IN_LANES=1),
    ),
}


MUTANTS |= {
    "rows_never_end": ("chop_rows", "is_first_q <= is_last", "is_first_q <= 1'b1", check_ternary),
    "terms_slip": ("chop_rows", "= can_take && has_beat;", "= can_take;", check_ternary),
    "odd_term_lost": (
        "chop_adder_tree",
        "node_q <= g_level[l-1].sums[2*n*W +: W];",
        "node_q <= '0;",
        check_odd_lanes,
    ),
    "rows_counted_too_early": (
        "chop_window",
        "? spare_q + came - needed_q",
        "? spare_q + came",
        check_conv,
    ),
    "slots_beyond_the_ring": (
        "chop_window",
        "beyond[ADDRESS_W+1] ? slot",
        "1'b1 ? slot",
        check_conv,
    ),
    "one_bank": (
        "chop_matmul",
        "if (is_bank_end) read_bank_q <= !read_bank_q;",
        "",
        check_matmul,
    ),
    "no_padding": (
        "chop_window",
        "is_line_end ? -X_W'(PADDING_X * FOLDS)",
        "is_line_end ? '0",
        check_conv,
    ),
}

MUTANTS |= {
    "row_of_another_index": (
        "chop_embedding",
        "!row_valid_q || (is_ready && is_last)",
        "is_ready",
        check_embedding,
    ),
    "words_of_a_row_slip": (
        "chop_embedding",
        "row_q + ADDR_W'(beat_q)",
        "row_q",
        check_embedding,
    ),
    "table_ignores_back_pressure": (
        "chop_embedding",
        "row_valid_q && is_ready;",
        "row_valid_q;",
        check_embedding,
    ),
}

MUTANTS |= {
    "shift_of_half": (
        "chop_split_block",
        "shift = SHIFT_W'(k + 1)",
        "shift = SHIFT_W'(k)",
        check_block_linear,
    ),
    "shift_of_another_beat": (
        "chop_split_block",
        "x >>> shift_q",
        "x >>> shift",
        check_block_linear,
    ),
    "weights_not_shifted": (
        "chop_block_linear",
        "+ BOTH_W'(f)",
        "",
        check_block_linear,
    ),
    "shifted_too_early": (
        "chop_block_linear",
        "both_q[LEVELS*BOTH_W +: BOTH_W]",
        "both_q[0 +: BOTH_W]",
        check_block_linear,
    ),
    "blocks_not_cleared": (
        "chop_block_linear",
        "(is_first ? '0 : sum_q)",
        "sum_q",
        check_block_linear,
    ),
    "blocks_split_ignore_back_pressure": (
        "chop_split_block",
        "data_in_0_valid_i && data_in_0_ready_o",
        "data_in_0_valid_i",
        check_block_linear,
    ),
    "bias_of_another_block": (
        "chop_rows",
        "finishes_o = valid_q[STAGES-2] && last_q[STAGES-2]",
        "finishes_o = valid_q[STAGES-2]",
        check_block_linear,
    ),
    "blocks_ignore_back_pressure": (
        "chop_block_linear",
        ".ready_i(is_ready)",
        ".ready_i(1'b1)",
        check_block_linear,
    ),
}

MUTANTS |= {
    "taps_slip": (
        "chop_depthwise_conv",
        "(moves && has_codes)",
        "(has_codes)",
        check_depthwise,
    ),
    "depthwise_ignores_back_pressure": (
        "chop_depthwise_conv",
        "moves = !has_terms_q || is_sum_ready",
        "moves = 1'b1",
        check_depthwise,
    ),
    "bias_of_another_channel": (
        "chop_depthwise_conv",
        "(last_moves && has_sums)",
        "(has_sums)",
        check_depthwise,
    ),
    "one_group": (
        "chop_linear",
        ".BEATS(SETS * GROUPS * BEATS)",
        ".BEATS(GROUPS * BEATS)",
        check_groups,
    ),
    "bias_of_one_group": (
        "chop_linear",
        ".BEATS(SETS * GROUPS),",
        ".BEATS(GROUPS),",
        check_groups,
    ),
    "bias_of_groups_slips": (
        "chop_linear",
        ".takes_i(finishes), .data_o(bias)",
        ".takes_i(takes), .data_o(bias)",
        check_groups,
    ),
}

MUTANTS |= {
    "zeros_count": ("chop_ternary_linear", "(w == '0) ? '0 :", "", check_ternary),
    "no_sign": ("chop_ternary_linear", "? -wide : wide", "? wide : wide", check_ternary),
    "ternary_not_cleared": (
        "chop_ternary_linear",
        "(is_first ? '0 : sum_q)",
        "sum_q",
        check_ternary,
    ),
    "ternary_ignores_back_pressure": (
        "chop_ternary_linear",
        ".ready_i(is_ready)",
        ".ready_i(1'b1)",
        check_ternary,
    ),
    "bias_of_another_row": (
        "chop_rows",
        "finishes_o = valid_q[STAGES-2] && last_q[STAGES-2]",
        "finishes_o = valid_q[STAGES-2]",
        check_ternary,
    ),
    "xor": ("chop_ternary_linear", "~(x[IN_W-1] ^ w[0])", "(x[IN_W-1] ^ w[0])", check_signs),
}


SOFT = "chop_multiplier"
MUTANTS |= {
    "sign_added": (SOFT, "- HIGH_W'(upper)", "+ HIGH_W'(upper)", check_soft),
    "low_bit_lost": (SOFT, "{high, row[0]}", "{high, 1'b0}", check_soft),
    "odd_sign_added": (SOFT, "-(HIGH_W'(row))", "HIGH_W'(row)", check_soft),
    "rows_in_one_place": (SOFT, ">>> HALF", ">>> 1", check_soft),
    "product_too_early": ("chop_matvec", "(SOFT > 1 ? SOFT : 1)", "1", check_soft),
}


OTHERS = (mutants_of_blocks, mutants_of_rows, mutants_of_streams, mutants_of_windows)
EVERY = {
    f"{mutant[0]}-{name}": mutant
    for mutants in (MUTANTS, *(module.MUTANTS for module in OTHERS))
    for name, mutant in mutants.items()
}


@pytest.mark.parametrize(("module", "old", "new", "run"), EVERY.values(), ids=EVERY)
@pytest.mark.sampled(4)
def test_a_planted_fault_is_found(module, old, new, run, tmp_path, monkeypatch):
    check_fault_is_found(module, old, new, run, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("run", dict.fromkeys(run for *_, run in EVERY.values()))
def test_without_a_fault_the_same_check_passes(run, tmp_path):
    run(tmp_path)


def test_a_swapped_pair_of_weight_words_is_found(tmp_path, monkeypatch):
    row = COMPONENTS["IntegerLinear"]

    def swapped(site):
        plan = row.plan(site)
        memory = plan.memories["WEIGHT_FILE"]
        first, *rest = memory.words
        other = next(k for k, word in enumerate(rest) if word != first)
        rest[other], first = first, rest[other]
        words = replace(memory, words=(first, *rest))
        return replace(plan, memories={**plan.memories, "WEIGHT_FILE": words})

    monkeypatch.delitem(COMPONENTS, "IntegerLinear")
    monkeypatch.setitem(COMPONENTS, "IntegerLinear", replace(row, plan=swapped))
    with pytest.raises(AssertionError, match="FAIL"):
        check_linear(tmp_path)
