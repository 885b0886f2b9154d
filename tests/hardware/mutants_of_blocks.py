"""Faults that are planted in the requantizer to blocks with shared exponents are found."""

from tests.hardware.bench import check
from tests.hardware.design.test_requantize_blocks import EDGE, drawn_blocks, requantizer

MODULE = "chop_requantize_blocks"


def check_blocks(folder):
    """Rows of two blocks of four features and one of two, a beat of two after the other."""
    driven = drawn_blocks(EDGE, 3, 10, samples=12)
    check(requantizer(EDGE, size=4), driven, fold=15, profiles=("none", "uniform", "bursts"))


def check_beats(folder):
    """Each beat is a block, so that as many exponents as beats are on their way."""
    driven = drawn_blocks(EDGE, 30, 1, samples=4)
    operator = requantizer(EDGE, size=1, window=(-7, 3))
    check(operator, driven, fold=30, profiles=("none", "bursts"))


_MUTANTS = {
    "bits_kept": ("(is_first_q ? '0 : used_q)", "used_q", check_blocks),
    "largest_of_one_lane": ("bits = bits | magnitudes_q", "bits = magnitudes_q", check_blocks),
    "complement_of_one": ("? -x : x", "? ~x : x", check_blocks),
    "window_without_end": ("(WINDOW'(above) << (WINDOW - 1))", "'0", check_blocks),
    "half_of_the_power": ("= EXPONENT_W'(k + 1)", "= EXPONENT_W'(k)", check_blocks),
    "row_without_end": ("is_last = is_row_last ||", "is_last =", check_blocks),
    "exponent_of_a_beat": ("is_sent && is_beat_last)", "is_sent)", check_blocks),
    "exponent_of_the_next_block": (
        "exponents_q[4*EXPONENT_W +: EXPONENT_W]",
        "exponents_q[3*EXPONENT_W +: EXPONENT_W]",
        check_beats,
    ),
    "exponents_without_a_place": ("beats_ready && exponents_ready", "beats_ready", check_beats),
    "beats_without_a_place": ("beats_ready && exponents_ready", "exponents_ready", check_blocks),
    "blocks_without_exponent": (
        "= has_beat && has_exponent && is_ready",
        "= has_beat && is_ready",
        check_blocks,
    ),
    "results_without_a_place": (
        "= has_beat && has_exponent && is_ready",
        "= has_beat && has_exponent",
        check_blocks,
    ),
    "no_saturation": (".LOW(-LIMIT), .HIGH(LIMIT)", ".LOW(-LIMIT-1), .HIGH(LIMIT)", check_blocks),
}
MUTANTS = {name: (MODULE, *mutant) for name, mutant in _MUTANTS.items()}
