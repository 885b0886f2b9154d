"""Search: what to vary, what to measure, and how to spend trials on it, on Optuna."""

from chop.search.measure import Goal, Measure, Pruned, Report
from chop.search.precision import PrecisionProblem
from chop.search.result import Result, Tried
from chop.search.sensitivities import sensitivity
from chop.search.space import Choice, Config, SearchSpace
from chop.search.study import Search
