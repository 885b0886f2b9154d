"""What can be measured of a stream of tensors: one small class per statistic."""

from chop.passes.statistics.base import STATISTICS, Reduction, Statistic, make_statistic
from chop.passes.statistics.moments import AbsoluteMean, NSigmaRange, Variance
from chop.passes.statistics.ranges import Histogram, MinMaxRange, QuantileRange
from chop.passes.statistics.record import Record
from chop.passes.statistics.reservoir import Reservoir
