"""Settings of the studies: what `quick` makes small, and what it leaves as given."""

import pytest

from chop.studies import settings
from chop.studies.settings import StudyConfig

STUDIES = StudyConfig.__subclasses__()
GIVEN = [
    (settings.BenchGenerateConfig, {"prompt": 5}),
    (settings.BenchSoftmaxConfig, {"shapes": ("3x4", "5x6")}),
    (settings.BenchLinearConfig, {"shapes": ("2x3x4",)}),
    (settings.BenchAttentionConfig, {"shapes": ("1x2x3x4",)}),
    (settings.BenchDequantizeConfig, {"outputs": 64, "rows": (2, 3)}),
    (settings.BenchCompileConfig, {"models": ("cnn",), "batch_sizes": (3,)}),
    (settings.BenchSoftmaxConfig, {"seconds": 0.07}),
]


@pytest.mark.parametrize(("study", "given"), GIVEN)
def test_quick_leaves_what_is_given_and_makes_the_rest_small(study, given):
    quick, usual = study(quick=True, **given), study()
    assert {name: getattr(quick, name) for name in given} == given
    small = {"seconds": settings.QUICK_SECONDS, **study.QUICK}
    assert {name: getattr(quick, name) for name in small} == {**small, **given}
    assert all(getattr(usual, name) != value for name, value in small.items())
    assert quick.how["seconds"] == quick.seconds


@pytest.mark.parametrize("study", STUDIES)
def test_what_is_small_is_a_setting_of_the_study(study):
    assert study.QUICK and study.QUICK.keys() <= study.__dataclass_fields__.keys()
