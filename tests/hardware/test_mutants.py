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
from tests.hardware.faults import check_fault_is_found, planted

pytestmark = needs_tools


def check_linear(folder):
    check(layer(4, 6), drawn(EDGE, 3, 6), fold=36)


def check_soft(folder):
    check(layer(4, 6), drawn(EDGE, 3, 6), fold=36, is_soft=True)
    check(layer(4, 6, weights=(-16, 15)), drawn(EDGE, 3, 6), fold=36, is_soft=True)


def check_odd_lanes(folder):
    check(layer(4, 3, weights=(-1, 1)), drawn(EDGE, 3, 3), fold=6)


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


MUTANTS = {
    **planted(
        check_requantize,
        {
            "chop_round_saturate floor": ("&& half &&", "&& 1'b0 &&"),
            "chop_round_saturate half_up": ("((below != '0) || is_odd)", "1'b1"),
            "chop_round_saturate no_sticky_bit": ("((below != '0) || is_odd)", "is_odd"),
            "chop_round_saturate no_saturation": ("is_above_q ? OUT_W'(HIGH_64) :", ""),
            "chop_credits credit_given_twice": ("starts_i ? taken_q == COUNT_W'(PLACES - 1) :", ""),
            "chop_requantize channels_slip": (
                ".takes_i(enters), .data_o(channel)",
                ".takes_i(data_in_0_ready_o), .data_o(channel)",
            ),
        },
    ),
    **planted(
        check_every_code,
        {
            "chop_round_saturate saturated_before_rounding": ("? MOST : MOST - 1", "? MOST : MOST"),
        },
    ),
    **planted(
        check_linear,
        {
            "chop_matvec not_cleared": ("(first_q[STAGES-1] ? '0 : sum_q)", "sum_q"),
            "chop_credits no_back_pressure": ("ready_o <= !is_full;", "ready_o <= 1'b1;"),
            "chop_credits credit_lost": ("leaves && !starts_i", "leaves"),
            "chop_matvec sums_without_a_place": ("(ready_i || !is_first_q)", "1'b1"),
            "chop_matvec weights_slip": ("= can_take && has_beat;", "= can_take;"),
            "chop_repeat row_lost": ("was_new_q <= is_new_q;", "was_new_q <= 1'b0;"),
            "chop_matvec bias_slips": ("finishes_o = valid_q[STAGES-2] &&", "finishes_o ="),
            "chop_words word_too_late": ("data_o <= word;", "if (takes_i) data_o <= word;"),
        },
    ),
    **planted(
        check_wide,
        {
            "chop_product low_part_signed": (
                "{1'b0, a_i[i*PART +: PART]}",
                "{a_i[i*PART+PART-1], a_i[i*PART +: PART]}",
            ),
        },
    ),
    **planted(
        check_copies("chop_skid"),
        {
            "chop_skid skid_overwritten": ("if (!skid_valid_q) skid_q", "skid_q"),
        },
    ),
    **planted(
        check_copies("chop_fifo", DEPTH=5),
        {
            "chop_fifo fifo_overflows": ("(count_q != COUNT_W'(WORDS))", "1'b1"),
            "chop_fifo fifo_loses": (
                "assign is_free = !data_out_0_valid_o || data_out_0_ready_i",
                "assign is_free = 1'b1",
            ),
        },
    ),
    **planted(
        check_copies("chop_fifo", DEPTH=50),
        {
            "chop_fifo large_fifo_loses": (
                "assign is_free = !has_word_q || moves",
                "assign is_free = 1'b1",
            ),
        },
    ),
    **planted(
        check_copies("chop_upsize", OUT_LANES=1),
        {
            "chop_upsize upsize_overwritten": (
                "= !data_out_0_valid_o || data_out_0_ready_i",
                "= 1'b1",
            ),
        },
    ),
    **planted(
        check_copies("chop_downsize", IN_LANES=1),
        {
            "chop_downsize downsize_early": ("&& data_out_0_ready_i);", ");"),
        },
    ),
    **planted(
        check_ternary,
        {
            "chop_rows rows_never_end": ("is_first_q <= is_last", "is_first_q <= 1'b1"),
            "chop_rows terms_slip": ("= can_take && has_beat;", "= can_take;"),
            "chop_ternary_linear zeros_count": ("(w == '0) ? '0 :", ""),
            "chop_ternary_linear no_sign": ("? -wide : wide", "? wide : wide"),
            "chop_ternary_linear ternary_not_cleared": ("(is_first ? '0 : sum_q)", "sum_q"),
            "chop_ternary_linear ternary_ignores_back_pressure": (
                ".ready_i(is_ready)",
                ".ready_i(1'b1)",
            ),
            "chop_rows bias_of_another_row": (
                "finishes_o = valid_q[STAGES-2] && last_q[STAGES-2]",
                "finishes_o = valid_q[STAGES-2]",
            ),
        },
    ),
    **planted(
        check_odd_lanes,
        {
            "chop_adder_tree odd_term_lost": (
                "node_q <= g_level[l-1].sums[2*n*W +: W];",
                "node_q <= '0;",
            ),
        },
    ),
    **planted(
        check_conv,
        {
            "chop_window rows_counted_too_early": (
                "? spare_q + came - needed_q",
                "? spare_q + came",
            ),
            "chop_window slots_beyond_the_ring": ("beyond[ADDRESS_W+1] ? slot", "1'b1 ? slot"),
            "chop_window no_padding": (
                "is_line_end ? -X_W'(PADDING_X * FOLDS)",
                "is_line_end ? '0",
            ),
        },
    ),
    **planted(
        check_matmul,
        {
            "chop_matmul one_bank": ("if (is_bank_end) read_bank_q <= !read_bank_q;", ""),
        },
    ),
    **planted(
        check_embedding,
        {
            "chop_embedding row_of_another_index": (
                "!row_valid_q || (is_ready && is_last)",
                "is_ready",
            ),
            "chop_embedding words_of_a_row_slip": ("row_q + ADDR_W'(beat_q)", "row_q"),
            "chop_embedding table_ignores_back_pressure": (
                "row_valid_q && is_ready;",
                "row_valid_q;",
            ),
        },
    ),
    **planted(
        check_block_linear,
        {
            "chop_split_block shift_of_half": ("shift = SHIFT_W'(k + 1)", "shift = SHIFT_W'(k)"),
            "chop_split_block shift_of_another_beat": ("x >>> shift_q", "x >>> shift"),
            "chop_block_linear weights_not_shifted": ("+ BOTH_W'(f)", ""),
            "chop_block_linear shifted_too_early": (
                "both_q[LEVELS*BOTH_W +: BOTH_W]",
                "both_q[0 +: BOTH_W]",
            ),
            "chop_block_linear blocks_not_cleared": ("(is_first ? '0 : sum_q)", "sum_q"),
            "chop_split_block blocks_split_ignore_back_pressure": (
                "data_in_0_valid_i && data_in_0_ready_o",
                "data_in_0_valid_i",
            ),
            "chop_rows bias_of_another_block": (
                "finishes_o = valid_q[STAGES-2] && last_q[STAGES-2]",
                "finishes_o = valid_q[STAGES-2]",
            ),
            "chop_block_linear blocks_ignore_back_pressure": (
                ".ready_i(is_ready)",
                ".ready_i(1'b1)",
            ),
        },
    ),
    **planted(
        check_depthwise,
        {
            "chop_depthwise_conv taps_slip": ("(moves && has_codes)", "(has_codes)"),
            "chop_depthwise_conv depthwise_ignores_back_pressure": (
                "moves = !has_terms_q || is_tree_ready",
                "moves = 1'b1",
            ),
            "chop_depthwise_conv bias_of_another_channel": (
                "(last_moves && has_sums)",
                "(has_sums)",
            ),
        },
    ),
    **planted(
        check_groups,
        {
            "chop_linear one_group": (".BEATS(SETS * GROUPS * BEATS)", ".BEATS(GROUPS * BEATS)"),
            "chop_linear bias_of_one_group": (".BEATS(SETS * GROUPS),", ".BEATS(GROUPS),"),
            "chop_linear bias_of_groups_slips": (
                ".takes_i(finishes), .data_o(bias)",
                ".takes_i(takes), .data_o(bias)",
            ),
        },
    ),
    **planted(
        check_signs,
        {
            "chop_ternary_linear xor": ("~(x[IN_W-1] ^ w[0])", "(x[IN_W-1] ^ w[0])"),
        },
    ),
    **planted(
        check_soft,
        {
            "chop_multiplier sign_added": ("- HIGH_W'(upper)", "+ HIGH_W'(upper)"),
            "chop_multiplier low_bit_lost": ("{high, row[0]}", "{high, 1'b0}"),
            "chop_multiplier odd_sign_added": ("-(HIGH_W'(row))", "HIGH_W'(row)"),
            "chop_multiplier rows_in_one_place": (">>> HALF", ">>> 1"),
            "chop_matvec product_too_early": ("(SOFT > 1 ? SOFT : 1)", "1"),
        },
    ),
}


OTHERS = (mutants_of_blocks, mutants_of_rows, mutants_of_streams, mutants_of_windows)
EVERY = {
    f"{mutant[0]}-{name}": mutant
    for mutants in (MUTANTS, *(module.MUTANTS for module in OTHERS))
    for name, mutant in mutants.items()
}


@pytest.mark.parametrize(("module", "old", "new", "run"), EVERY.values(), ids=EVERY)
@pytest.mark.sampled(2)
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
