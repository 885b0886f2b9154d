"""One confidence level: in code, in messages and on pages."""

import re

import pytest
from scipy.stats import norm

from chop.bench import paired_ratio
from chop.statistics.intervals import LEVEL, LEVEL_TEXT, NORMAL, interval_of_estimate
from tests.pages import ROOT

SAID = re.compile(
    r"(\d+) ?% (?:bootstrap )?(?:interval|percentiles)|\bintervals? (?:are )?at (\d+) ?%"
)


def test_the_level_is_the_same_everywhere():
    assert LEVEL_TEXT == f"{100 * LEVEL:.0f} %" == "95 %"
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert len(files) > 400
    found = {
        path.name: {level for match in SAID.finditer(path.read_text()) for level in match.groups()}
        for path in files
    }
    assert set().union(*found.values()) - {None} == {"95"}, found


def test_times_have_the_level_of_metrics():
    """A wider interval of the same pairs is one of a higher level."""
    above = [1.0 + 0.01 * (i * i % 17) for i in range(60)]
    named = paired_ratio(above, [1.0] * 60, confidence=LEVEL)
    assert paired_ratio(above, [1.0] * 60) == named
    wider = paired_ratio(above, [1.0] * 60, confidence=0.99)
    assert wider.low <= named.low < named.high < wider.high


def test_an_estimate_has_the_interval_of_scipy():
    assert pytest.approx(norm.ppf(0.975)) == NORMAL
    assert interval_of_estimate(0.5, 0.1) == pytest.approx(norm.interval(0.95, 0.5, 0.1))
    assert interval_of_estimate(0.99, 0.1)[1] == 1.0 and interval_of_estimate(0.02, 0.1)[0] == 0.0
