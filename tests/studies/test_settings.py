"""Settings of the studies: what `quick` makes small, what it leaves as given, and mistakes."""

import pytest

from chop.errors import ConfigError
from chop.studies import settings
from chop.studies.settings import (
    BenchAttentionConfig,
    BenchCompileConfig,
    BenchDequantizeConfig,
    BenchLinearConfig,
    BenchSoftmaxConfig,
    StudyConfig,
)

STUDIES = StudyConfig.__subclasses__()
GIVEN = [
    (settings.BenchGenerateConfig, {"prompt": 5}),
    (BenchSoftmaxConfig, {"shapes": ("3x4", "5x6")}),
    (BenchLinearConfig, {"shapes": ("2x3x4",)}),
    (BenchAttentionConfig, {"shapes": ("1x2x3x4",)}),
    (BenchDequantizeConfig, {"outputs": 64, "rows": (2, 3)}),
    (BenchCompileConfig, {"models": ("cnn",), "batch_sizes": (3,)}),
    (BenchSoftmaxConfig, {"seconds": 0.07}),
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


@pytest.mark.parametrize(
    ("study", "given", "message"),
    [
        (StudyConfig, {"method": "pared"}, "did you mean 'paired'"),
        (
            BenchAttentionConfig,
            {"shapes": ("12x64",)},
            "expected batch x heads x tokens x head size",
        ),
        (BenchAttentionConfig, {"shapes": ("0x1x2x3",)}, "expected batch x heads"),
        (BenchAttentionConfig, {"shapes": ()}, "expected one or more, such as"),
        (BenchAttentionConfig, {"dtypes": ("float31",)}, "did you mean 'float32'"),
        (BenchAttentionConfig, {"masks": ("casual",)}, "did you mean 'causal'"),
        (BenchAttentionConfig, {"masks": ()}, "masks: expected one or more, such as none"),
        (BenchLinearConfig, {"shapes": ("12x64",)}, "expected rows x inputs x outputs"),
        (BenchLinearConfig, {"shapes": ()}, "expected one or more, such as"),
        (BenchLinearConfig, {"iterations": (0,)}, "iterations: got 0, expected 1 or more"),
        (BenchSoftmaxConfig, {"shapes": ("4096",)}, "expected rows x columns"),
        (BenchSoftmaxConfig, {"shapes": ("0x5",)}, "expected rows x columns"),
        (BenchSoftmaxConfig, {"shapes": ()}, "one or more shapes"),
        (BenchSoftmaxConfig, {"dtypes": ("float23",)}, "did you mean 'float32'"),
        (BenchCompileConfig, {"modes": ("max-autotun",)}, "did you mean 'max-autotune'"),
        (BenchCompileConfig, {"batch_sizes": (0,)}, "batch_sizes: got 0, expected 1 or more"),
        (BenchCompileConfig, {"iterations": ()}, "iterations: expected at least one"),
        (BenchCompileConfig, {"length": 0}, "length: got 0, expected 1 or more"),
        (BenchCompileConfig, {"models": ()}, "models: expected one or more"),
        (
            BenchDequantizeConfig,
            {"formats": ("mxint",)},
            r"formats\[0\]: got 'mxint': did you mean",
        ),
        (BenchDequantizeConfig, {"formats": ()}, "formats: expected at least one"),
        (BenchDequantizeConfig, {"dtype": "float8"}, "dtype: got 'float8'"),
        (BenchDequantizeConfig, {"rows": (0,)}, "rows: got 0, expected 1 or more"),
    ],
)
def test_mistakes_are_named(study, given, message):
    with pytest.raises(ConfigError, match=message):
        study(**given)


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_times_are_checked_before_anything_is_measured(study, seconds):
    with pytest.raises(ConfigError, match="seconds: got .*, expected more than 0"):
        study(seconds=seconds)
