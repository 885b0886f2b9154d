"""Search engine: spaces, objectives, samplers, and studies with persistent trials."""

from chop.base.elsewhere import refuse_calls
from chop.search.objective import Constraint, Goal, Measure, Pruned, Report
from chop.search.result import Result, TrialRecord
from chop.search.space import Choice, Config, SearchSpace
from chop.search.study import Search

__all__ = [
    "Choice",
    "Config",
    "Constraint",
    "Goal",
    "Measure",
    "Pruned",
    "Report",
    "Result",
    "Search",
    "SearchSpace",
    "TrialRecord",
]

refuse_calls(__name__, "chop.search.Search, or the command chop search")
