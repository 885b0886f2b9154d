"""Benchmark engine: interleaved runs, confidence intervals, output comparison, environment."""

from chop.base.elsewhere import refuse_calls
from chop.bench.record import Comparison, Measured
from chop.bench.statistics import Interval, paired_ratio
from chop.bench.timing import Variant, compare

__all__ = [
    "Comparison",
    "Interval",
    "Measured",
    "Variant",
    "compare",
    "paired_ratio",
]

refuse_calls(__name__, "chop.bench.compare, or the command chop bench")
