"""Benchmark engine: interleaved runs, confidence intervals, output comparison, environment."""

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
