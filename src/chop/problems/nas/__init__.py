"""Neural architecture search: spaces of architectures, trained objectives, zero-cost proxies."""

from chop.problems.nas.architecture import Architectures
from chop.problems.nas.compression import Compression
from chop.problems.nas.proxies import zero_cost_score
from chop.problems.nas.training import TrainedMeasure

__all__ = ["Architectures", "Compression", "TrainedMeasure", "zero_cost_score"]
