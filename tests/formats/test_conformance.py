"""Every check of `checks.py`, on every format in the settings of `examples.py`."""

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import BlockFP, MXInt, formats
from chop.testing import formats as checks
from tests.formats.examples import ALL, EXAMPLES, list_examples
from tests.subcases import subcases


def cases():
    for check in checks.CHECKS:
        once = check.run in checks.ONCE_PER_KIND
        chosen = [fmt for fmt in ALL if check.applies(fmt)]
        for fmt in {fmt.name: fmt for fmt in chosen}.values() if once else chosen:
            yield pytest.param(check, fmt, id=f"{check.name}-{fmt.label.replace(' ', '-')}")


@subcases("check, fmt", list(cases()), kept=150)
def test_format(check, fmt):
    check.run(fmt)


def test_every_registered_format_has_examples():
    assert {kind.name for kind in formats()} == set(EXAMPLES)
    assert len({fmt.key for fmt in ALL}) == len(ALL)


def test_every_check_is_asked_of_most_formats():
    for check in checks.CHECKS:
        asked = {fmt.name for fmt in ALL if check.applies(fmt)}
        about_blocks = check.run in (checks.takes_any_axis, checks.blocks_do_not_straddle_rows)
        assert len(asked) >= (5 if about_blocks else 10), check.name
    small = [fmt for fmt in ALL if fmt.bits() < 9]
    exempt = {fmt.name for fmt in small if not checks.rounds_to_nearest(fmt)}
    assert exempt == {"integer", "binary", "binary_residual", "ternary"}
    for name in exempt:
        assert any(checks.rounds_to_nearest(fmt) for fmt in small if fmt.name == name)


@subcases("kind", formats(), ids=lambda kind: kind.name)
def test_the_search_space_holds_valid_settings(kind):
    checks.search_space_holds_valid_settings(list_examples(kind)[0])


def test_a_huge_block_size_or_a_wrong_one_is_refused():
    for size, message in [(0, "got 0"), ([], "got \\[\\]"), (16.0, "expected int"), ([0, 4], "0")]:
        with pytest.raises(ConfigError, match=message):
            MXInt(8, block_size=size)
    assert BlockFP(8, block_size=[1, 16]) == BlockFP(8, block_size=16) == BlockFP(8)


@subcases("fmt", ALL, ids=lambda fmt: fmt.label)
def test_neutral_numbers_change_nothing_of_others(fmt):
    """Beside them a group, or a tensor, is rounded as if it were shorter."""
    if not fmt.is_deterministic or getattr(fmt, "quantile", 1.0) < 1:
        return
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    given = (fmt.neutral, 0.0) if fmt.ignores_zeros else (fmt.neutral,)
    for number in given:
        beside = torch.cat([x, torch.full_like(x, number)], -1)
        assert torch.equal(fmt(beside)[:, :16], fmt(x))
    if fmt.ignores_zeros:
        assert not fmt(torch.zeros(3, 16)).any()
