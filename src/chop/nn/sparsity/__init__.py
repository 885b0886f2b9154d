"""Sparsity: saliency scores, granularities, masks and activation pruning."""

from chop.nn.sparsity.activation import PruneActivation
from chop.nn.sparsity.granularity import (
    Granularity,
    Scored,
    lowest_weights,
    unit_scores,
)
from chop.nn.sparsity.mask import (
    attach_mask,
    describe_pruning,
    detach_mask,
    get_masked,
    get_sparsity,
    make_permanent,
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
    "attach_mask",
    "describe_pruning",
    "detach_mask",
    "get_masked",
    "get_sparsity",
    "kth_smallest",
    "lowest",
    "lowest_weights",
    "make_permanent",
    "unit_scores",
]
