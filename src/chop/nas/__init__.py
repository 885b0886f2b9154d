"""Neural architecture search: spaces of architectures, trained objectives, zero-cost proxies."""

from chop.nas.architecture import Architectures
from chop.nas.compression import Compression
from chop.nas.proxies import zero_cost_score
from chop.nas.training import TrainedMeasure

__all__ = ["Architectures", "Compression", "TrainedMeasure", "zero_cost_score"]
