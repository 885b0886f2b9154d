"""Conformance tests for extensions: the laws that chop's own formats, passes and samplers obey."""

from chop.testing.formats import check_format
from chop.testing.passes import check_pass
from chop.testing.samplers import check_sampler

__all__ = [
    "check_format",
    "check_pass",
    "check_sampler",
]
