"""Faults that are planted in softmax and norms, which work on whole rows, are found."""

from chop.nn.integer import IntegerLayerNorm, IntegerOptions, IntegerSoftmax
from chop.nn.integer.mask import KeptKeys
from tests.hardware.bench import check, drawn
from tests.hardware.design.test_linear import EDGE
from tests.hardware.design.test_norm import norm
from tests.hardware.design.test_softmax import HEAD_BY_HEAD, mask_of
from tests.hardware.faults import planted


def check_softmax(folder):
    check(IntegerSoftmax(EDGE, 7, -1, IntegerOptions()), drawn(EDGE, 4, 7))


def check_short_softmax(folder):
    check(IntegerSoftmax(EDGE, 2, -1, IntegerOptions()), drawn(EDGE, 20, 2))


def check_softmax_of_one(folder):
    check(IntegerSoftmax(EDGE, 1, -1, IntegerOptions()), drawn(EDGE, 20, 1))


def check_masked_softmax(folder):
    scores = drawn(EDGE, 2, 5, 7, samples=6, positions=HEAD_BY_HEAD)
    operator, kept = IntegerSoftmax(EDGE, 7, -1, IntegerOptions()), KeptKeys(5, 7, True)
    check(operator, scores, mask_of(7), kept=kept, profiles=("none", "uniform", "bursts"))


def check_norm(folder):
    check(norm(IntegerLayerNorm, EDGE, (6,)), drawn(EDGE, 4, 6), fold=12)


def check_short_norm(folder):
    """More rows wait in the FIFO than the root takes."""
    check(norm(IntegerLayerNorm, EDGE, (2,)), drawn(EDGE, 20, 2), fold=40)


MUTANTS = {
    **planted(
        check_softmax,
        {
            "chop_softmax softmax_sum_kept": ("(is_first_q ? '0 : partial_q)", "partial_q"),
            "chop_softmax maximum_of_the_next_row": (
                ".data_in_0_valid_i(is_complete_q)",
                ".data_in_0_valid_i(is_loaded && is_load_last)",
            ),
            "chop_reciprocal quotient_of_another_sign": (
                "is_one = !difference[IN_W+1]",
                "is_one = difference[IN_W+1]",
            ),
        },
    ),
    **planted(
        check_short_softmax,
        {
            "chop_softmax sum_of_softmax_overwritten": ("!(is_last && is_row_taken_q)", "1'b1"),
            "chop_softmax maximum_lost": ("maxima_ready && !is_complete_q", "1'b1"),
        },
    ),
    **planted(
        check_softmax_of_one,
        {
            "chop_softmax maximum_of_one_code_lost": (
                "maxima_ready && !is_complete_q",
                "maxima_ready",
            ),
        },
    ),
    **planted(
        check_norm,
        {
            "chop_layer_norm norm_sum_kept": ("(is_first_q ? '0 : partial_sum_q)", "partial_sum_q"),
            "chop_isqrt root_takes_too_little": ("{data_out_0_o, 2'b01}", "{data_out_0_o, 2'b00}"),
            "chop_isqrt rest_of_root_kept": (
                "is_one ? REST_W'(difference)",
                "is_one ? REST_W'(taken)",
            ),
            "chop_reciprocal rest_of_quotient_kept": (
                "is_one ? IN_W'(difference)",
                "is_one ? IN_W'(taken)",
            ),
        },
    ),
    **planted(
        check_short_norm,
        {
            "chop_layer_norm row_overwritten": ("!(is_last_in && is_row_taken_q)", "1'b1"),
        },
    ),
    **planted(
        check_masked_softmax,
        {
            "chop_masked_softmax hidden_is_the_smallest": (
                ": IN_W'(HIDDEN);",
                ": IN_W'(HIDDEN + TABLE_DEPTH / 2);",
            ),
            "chop_masked_softmax mask_slips": ("is_mask_ready && has_mask", "has_mask"),
            "chop_masked_softmax hidden_rows_stay": ("kept ? result : '0", "result"),
            "chop_masked_softmax not_causal": ("key_q <= query_q", "1'b1"),
            "chop_masked_softmax queries_go_on": ("(query_q == COUNT_W'(QUERIES - 1)) ? '0 :", ""),
            "chop_masked_softmax kept_slips": ("(code_valid_q && softmax_ready)", "(code_valid_q)"),
        },
    ),
}
