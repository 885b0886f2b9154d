"""Conformance tests for extensions, with the laws that chop's own components obey."""

from chop.testing.components import Driven, check_component, draw_codes
from chop.testing.formats import check_format
from chop.testing.operators import check_operator
from chop.testing.passes import check_pass
from chop.testing.samplers import check_sampler
from chop.testing.targets import check_target
from chop.testing.tasks import check_task

__all__ = [
    "Driven",
    "check_component",
    "check_format",
    "check_operator",
    "check_pass",
    "check_sampler",
    "check_target",
    "check_task",
    "draw_codes",
]
