"""Faults planted in components that move codes or treat each by itself are found."""

import torch
from torch import nn

from chop.hardware.design.port import Port
from chop.hardware.design.stream import Stream
from chop.hardware.plans.order import concat_plan, constant_plan, select_plan
from chop.hardware.plans.reorder import ZERO, reorder_plan
from chop.nn import integer as i
from chop.nn.integer import Call, Edge, Grid, IntegerOptions
from tests.hardware.bench import Driven, check, check_module, drawn
from tests.hardware.design.test_cache import cached, flags
from tests.hardware.design.test_conv import convolution
from tests.hardware.design.test_linear import EDGE
from tests.hardware.design.test_order import run as run_order
from tests.hardware.design.test_pool import image
from tests.hardware.design.test_streams_rtl import check_fork

WIDE = Edge.of(0.5, -100, 300)


def check_division(folder):
    """Means of three and of 49 codes, of all remainders."""
    for divisor, step in ((3, 0.5), (49, 2.0)):
        edge = Edge.of(1.0, -300, 300, divisor)
        codes = torch.arange(-300, 300).view(-1, 1)
        entered = Driven(*drawn(edge, 1))._replace(codes=codes)
        check(i.Requantize(edge, Grid(step, -128, 127)), entered)


def check_of_one(operator):
    def run(folder):
        check(operator, drawn(EDGE, 12), fold=6)

    return run


def check_of_two(kind):
    def run(folder):
        check(kind(EDGE, WIDE), drawn(EDGE, 12), drawn(WIDE, 12, seed=1), fold=6)

    return run


def check_of_tokens(operator, *inputs):
    return lambda folder: check(operator, *inputs, fold=30)


def check_pool(kind):
    def run(folder):
        call = Call([(4, 5, 5)], {"kernel_size": 2, "stride": 1, "padding": 1})
        operator = kind.from_quantized(None, [EDGE], IntegerOptions(), call)
        check(operator, image(EDGE, 4, 5, 5), fold=400)

    return run


def check_sum(folder):
    check(i.IntegerMean(EDGE, (4, 7, 6), (-2,), False), drawn(EDGE, 7, 6), fold=21)


def check_conv(folder):
    operator = convolution(nn.Conv2d(4, 6, 2, groups=2))
    check(operator, image(EDGE, 4, 3, 4), fold=150)


def check_concat(folder):
    a, b = drawn(EDGE, 9, 3), drawn(WIDE, 9, 2, seed=1)
    plan = concat_plan(a.stream, b.stream, -1)
    run_order("chop_concat", plan, (a, b), torch.cat((a.codes, b.codes), -1), folder)


def check_select(folder):
    given = drawn(EDGE, 9, 6)
    plan = select_plan(given.stream, given.stream.positions[:, 2:5])
    run_order("chop_select", plan, (given,), given.codes[:, :, 2:5], folder)


def check_constant(folder):
    codes = drawn(EDGE, 6, 2, samples=1).codes
    plan = constant_plan(codes[0], Stream.in_order((6, 2), EDGE))
    run_order("chop_constant", plan, (), codes.expand(4, 6, 2), folder)


def check_reorder(folder):
    """Rows of codes leave as columns, with a zero behind each column."""
    given = drawn(EDGE, 5, 3)
    places = torch.nn.functional.pad(given.stream.positions.T, (0, 1), value=ZERO)
    plan = reorder_plan(given.stream, places, torch.arange(18).view(3, 6), 20)
    expected = torch.nn.functional.pad(given.codes.mT, (0, 1))
    run_order("chop_reorder", plan, (given,), expected, folder)


def check_copies_of_runs(folder):
    """Each run of three beats leaves twice."""
    beats = drawn(EDGE, 60, 1, samples=1).codes[0]
    twice = beats.view(20, 1, 3).expand(-1, 2, -1).reshape(-1, 1)
    ports = {
        Port("data_in_0", 1, 8, 3, True): beats,
        Port("data_out_0", 1, 8, 6, False): twice,
    }
    check_module("chop_copies", {"W": 8, "BEATS": 3, "TIMES": 2}, ports, folder=folder)


def check_fork_of_three(folder):
    check_fork(3, folder)


WAITS = "!data_out_0_valid_o || data_out_0_ready_i"
TABLE = check_of_one(i.Table(torch.randperm(256) - 128, -128, EDGE))
SCALE, RELU = check_of_one(i.IntegerScale(EDGE, 0.1)), check_of_one(i.IntegerReLU(EDGE))
NEGATE = check_of_one(i.IntegerNegate(Edge.of(0.5, -127, 128)))
SUB, MUL = check_of_two(i.IntegerSub), check_of_two(i.IntegerMul)
MAXIMA, AVERAGES = check_pool(i.IntegerMaxPool2d), check_pool(i.IntegerAvgPool2d)
TAKES, CREDIT = "takes = can_take && has_beat;", ".valid_i(valid_q[STAGES-1])"
PARTIAL = "(count_q == '0 ? '0 : earlier)"
CHANNELS = i.ChannelMap(*torch.randn(2, 12, generator=torch.Generator().manual_seed(1)).double())
AFFINE = check_of_one(i.IntegerBatchNorm(EDGE, CHANNELS))
SLOPES = nn.PReLU(12)
SLOPES.weight.data.copy_(torch.linspace(-1, 2, 12))
PRELU = check_of_one(
    i.IntegerPReLU.from_quantized(SLOPES, [EDGE], IntegerOptions(), Call([(1, 12)]))
)
THRESHOLDS = check_of_one(i.IntegerThresholds(EDGE, CHANNELS, i.Grid(3.0, -4, 3)))
KEYS, VALUES = (
    check_of_tokens(operator, *inputs)
    for operator, inputs in (cached(EDGE, EDGE, 5, 2, 2, 4, is_key) for is_key in (True, False))
)
POSITION = check_of_tokens(i.IntegerPosition(5), flags())
MUTANTS = {
    "row_at_the_start": ("chop_cached_matmul", "'0 && beat_q == '0)", "'0)", KEYS),
    "rows_of_another_sequence": (
        "chop_cached_matmul",
        "visible_q[1] ? word_q : '0",
        "word_q",
        VALUES,
    ),
    "row_hidden_early": ("chop_cached_matmul", "(inner_q) <= pos", "(inner_q) < pos", VALUES),
    "row_stored_too_early": ("chop_cached_matmul", "!reads_q && data_in_2", "data_in_2", KEYS),
    "position_of_another_token": (
        "chop_cached_matmul",
        "data_in_2_ready_o = is_stored",
        "data_in_2_ready_o = is_written",
        KEYS,
    ),
    "flag_ignored": ("chop_position", "(data_in_0_i == '0) ? next_q : '0", "next_q", POSITION),
    "no_wrap": ("chop_position", "(position == OUT_W'(LENGTH - 1)) ? '0 :", "", POSITION),
    "shift_early": ("chop_affine", "OUT_W'(shift_2_q)", "OUT_W'(shift_1_q)", AFFINE),
    "affine_too_early": ("chop_affine", CREDIT, ".valid_i(valid_q[STAGES-2])", AFFINE),
    "slope_for_every_code": ("chop_prelu", "x < 0 ? product :", "1'b1 ? product :", PRELU),
    "slope_of_another_code": ("chop_prelu", ".a_i(x_2_q[", ".a_i(x_1_q[", PRELU),
    "prelu_too_early": ("chop_prelu", CREDIT, ".valid_i(valid_q[STAGES-2])", PRELU),
    "zeros_from_the_frame": ("chop_reorder", "inside_q[1] ? word_q : '0", "word_q", check_reorder),
    "bank_overwritten": ("chop_reorder", "!full_q[write_bank_q]", "1'b1", check_reorder),
    "frame_read_too_early": ("chop_reorder", "full_q[read_bank_q] &&", "", check_reorder),
    "slopes_alike": ("chop_thresholds", "^ {IN_W{words[i*WORD_W+WORD_W-1]}}", "", THRESHOLDS),
    "threshold_missed": ("chop_thresholds", "v >= $signed", "v > $signed", THRESHOLDS),
    "quotients_not_rounded": ("chop_requantize", "+ (PRODUCT_W-DROPPED+1)'(1)", "", check_division),
    "negated": ("chop_add", "NEGATE ? shifted_a - shifted_b :", "", SUB),
    "sum_overwritten": ("chop_add", f"moves = {WAITS}", "moves = 1'b1", SUB),
    "operands_apart": ("chop_add", "= moves && data_in_1_valid_i", "= moves", SUB),
    "product_overwritten": ("chop_mul", f"moves = {WAITS}", "moves = 1'b1", MUL),
    "factors_apart": ("chop_mul", "= moves && data_in_0_valid_i", "= moves", MUL),
    "not_cut": ("chop_relu", "x[IN_W-1] ? '0 : OUT_W'(x)", "OUT_W'(x)", RELU),
    "not_negated": ("chop_negate", "-(OUT_W'(x))", "OUT_W'(x)", NEGATE),
    "scale_too_early": ("chop_scale", CREDIT, ".valid_i(valid_q[STAGES-2])", SCALE),
    "entry_of_another_code": ("chop_table", "- ADDR_W'(LOW)", "- ADDR_W'(LOW + 1)", TABLE),
    "word_late": ("chop_rom", "memory[addr_i]", "memory[addr_i ^ 1'b1]", TABLE),
    "largest_kept": ("chop_max_pool", "beat_q == '0 || code > best", "code > best", MAXIMA),
    "largest_lost": ("chop_max_pool", f"!is_last || {WAITS}", "1'b1", MAXIMA),
    "padding_counts": ("chop_avg_pool", ".PAD_CODE(PAD_CODE)", ".PAD_CODE(1)", AVERAGES),
    "sums_kept": ("chop_sum", PARTIAL, "earlier", check_sum),
    "sums_lost": ("chop_sum", f"!has_terms_q || !is_last || {WAITS}", "1'b1", check_sum),
    "one_group": ("chop_conv", ".SETS(GROUPS)", ".SETS(1)", check_conv),
    "turns_slip": ("chop_concat", "(count_q >= COUNT", "(count_q > COUNT", check_concat),
    "joined_overwritten": ("chop_concat", f"= {WAITS}", "= 1'b1", check_concat),
    "selected_overwritten": ("chop_select", f"= {WAITS}", "= 1'b1", check_select),
    "period_slips": ("chop_select", "if (data_in_0_valid_i)", "", check_select),
    "constant_too_early": (
        "chop_constant",
        "valid_i(valid_q[1])",
        "valid_i(reads)",
        check_constant,
    ),
    "copies_ignore_back_pressure": (
        "chop_copies",
        TAKES,
        "takes = has_beat;",
        check_copies_of_runs,
    ),
    "copies_without_a_beat": ("chop_copies", TAKES, "takes = can_take;", check_copies_of_runs),
    "not_copied": ("chop_copies", ".TIMES(TIMES)", ".TIMES(1)", check_copies_of_runs),
    "branch_sent_twice": (
        "chop_fork",
        "{N{data_in_0_valid_i}} & ~taken_q",
        "{N{data_in_0_valid_i}}",
        check_fork_of_three,
    ),
}
