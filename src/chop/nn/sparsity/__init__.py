"""What is left out of a model: scores, granularities, masks and activation pruners."""

from chop.nn.sparsity.activation import PruneActivation
from chop.nn.sparsity.granularity import (
    Granularity,
    Scored,
    lowest_weights,
    unit_scores,
)
from chop.nn.sparsity.mask import (
    make_permanent,
    masked_of,
    note_of,
    put_mask,
    sparsity_of,
    take_mask,
)
from chop.nn.sparsity.scores import SCORES, Score, ScoreInputs
from chop.nn.sparsity.selection import kth_smallest, lowest

__all__ = [
    "SCORES",
    "Granularity",
    "PruneActivation",
    "Score",
    "ScoreInputs",
    "Scored",
    "kth_smallest",
    "lowest",
    "lowest_weights",
    "make_permanent",
    "masked_of",
    "note_of",
    "put_mask",
    "sparsity_of",
    "take_mask",
    "unit_scores",
]
