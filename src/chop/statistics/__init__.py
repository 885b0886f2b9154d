"""Statistics of streams of tensors: one small class for each."""

from chop.statistics.base import STATISTICS, Reduction, Statistic, make_statistic
from chop.statistics.moments import AbsoluteMean, NSigmaRange, Variance
from chop.statistics.ranges import Histogram, MinMaxRange, QuantileRange
from chop.statistics.record import Record
from chop.statistics.reservoir import Reservoir

__all__ = [
    "STATISTICS",
    "AbsoluteMean",
    "Histogram",
    "MinMaxRange",
    "NSigmaRange",
    "QuantileRange",
    "Record",
    "Reduction",
    "Reservoir",
    "Statistic",
    "Variance",
    "make_statistic",
]
