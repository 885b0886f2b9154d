"""Faults planted in windows that send several taps of a kernel together are found."""

from torch import nn

from chop.nn.integer import (
    Call,
    Grid,
    IntegerMaxPool2d,
    IntegerOptions,
    IntegerReLU,
    Requantize,
)
from tests.hardware.bench import check, drawn
from tests.hardware.design.test_conv import convolution
from tests.hardware.design.test_linear import EDGE
from tests.hardware.design.test_pool import image
from tests.hardware.faults import planted

KERNELS = [
    (nn.Conv2d(2, 2, 3, padding=(1, 2), dilation=(1, 2)), (4, 4), 44, 9),
    (nn.Conv2d(1, 2, (4, 3), padding=(2, 1), dilation=(2, 1)), (7, 4), 48, 6),
    (nn.Conv2d(1, 2, (2, 4), padding=(1, 2)), (3, 5), 96, 2),
]
"""Layers, sizes of an image, a fold, and taps of a beat: all, two rows, and half a row."""


def check_taps(folder):
    for module, sizes, fold, taps in KERNELS:
        given = image(EDGE, module.in_channels, *sizes)
        plan = check(convolution(module), given, fold=fold, profiles=("uniform", "bursts"))
        assert plan.parameters["TAP_LANES"] == taps
        assert plan.parameters["FOLDS"] == module.in_channels


WINDOW = "chop_window"
COLUMNS, SLOT = "tap % TAPS_X * DILATION_X * FOLDS", "SLOTS == 0 ? slot_q : in_ring(slot_q, SLOTS)"
WORD, LANE = "x_q + X_W'(COLUMNS) + X_W'(fold_q)", "codes[tap*LANES*IN_W"
CHANGES = {
    "columns_side_by_side": (COLUMNS, "tap % TAPS_X * FOLDS"),
    "columns_of_beats": (COLUMNS, "tap % TAPS_X * DILATION_X"),
    "rows_side_by_side": ("tap / TAPS_X * DILATION_Y", "tap / TAPS_X"),
    "taps_of_one_row": (SLOT, "slot_q"),
    "row_beyond_the_ring": (SLOT, "slot_q + ADDRESS_W'(SLOTS)"),
    "taps_of_one_column": (WORD, "x_q + X_W'(fold_q)"),
    "taps_of_one_beat": (WORD, "x_q + X_W'(COLUMNS)"),
    "columns_inside": ("x_1_q <= x_q + X_W'(COLUMNS)", "x_1_q <= x_q"),
    "rows_inside": ("y_1_q <= y_q + Y_W'(ROWS)", "y_1_q <= y_q"),
    "next_column": ("NEXT_X = TAPS_X * DILATION_X", "NEXT_X = DILATION_X"),
    "next_row": ("NEXT_Y = TAPS_Y * DILATION_Y", "NEXT_Y = DILATION_Y"),
    "first_beat_of_a_row": ("BEAT_X_W'(BEATS_X - 1)", "'0"),
    "first_rows": ("BEAT_Y_W'(BEATS_Y - 1)", "'0"),
    "last_tap_first": (LANE, "codes[(TAP_LANES-1-tap)*LANES*IN_W"),
    "one_copy_is_loaded": ("if (is_loaded) ring", "if (is_loaded && tap == 0) ring"),
}


def check_joined_taps(folder):
    """Nine taps of a depthwise convolution and of a maximum in each beat."""
    depthwise = convolution(nn.Conv2d(2, 2, 3, padding=1, groups=2))
    pool = IntegerMaxPool2d.from_quantized(
        None,
        [EDGE],
        IntegerOptions(),
        Call([(2, 4, 4)], {"kernel_size": 3, "stride": 1, "padding": 1}),
    )
    for operator in (depthwise, pool):
        plan = check(operator, image(EDGE, 2, 4, 4), fold=16, profiles=("uniform", "bursts"))
        assert plan.cycles == 16 and plan.parameters["TAP_LANES"] == 9


def check_activations(folder):
    """A rounding and a ReLU of a sample in a beat."""
    check(Requantize(EDGE, Grid(2.0, -8, 7)), drawn(EDGE, 5), profiles=("uniform", "bursts"))
    check(IntegerReLU(EDGE), drawn(EDGE, 5), profiles=("uniform", "bursts"))


MUTANTS = {
    **{name: (WINDOW, old, new, check_taps) for name, (old, new) in CHANGES.items()},
    **planted(
        check_joined_taps,
        {
            "chop_taps odd_tap_lost": ("assign y = a;", "assign y = '0;"),
            "chop_taps smallest_tap": ("a > b ? a : b", "a > b ? b : a"),
            "chop_taps taps_move_while_waiting": ("if (moves) result", "result"),
            "chop_taps taps_ignore_back_pressure": (
                "= !data_out_0_valid_o || data_out_0_ready_i",
                "= 1'b1",
            ),
        },
    ),
    **planted(
        check_activations,
        {
            "chop_round round_ignores_back_pressure": (
                "= !data_out_0_valid_o || data_out_0_ready_i",
                "= 1'b1",
            ),
            "chop_relu relu_ignores_back_pressure": (
                "data_in_0_ready_o  = data_out_0_ready_i",
                "data_in_0_ready_o  = 1'b1",
            ),
        },
    ),
}
