"""Settings made in Python are checked field by field, as those of files and options are."""

import dataclasses
import typing
from pathlib import Path

import numpy as np
import pytest

from chop.actions.bench.settings import BenchModelConfig
from chop.actions.compress.settings import CompressConfig
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.emit.settings import EmitConfig
from chop.actions.search.settings import NasConfig, PrecisionConfig, SensitivityConfig
from chop.actions.shard.settings import ShardConfig
from chop.actions.sweep.settings import PruneSweepConfig, QuantizeSweepConfig
from chop.cli.values import is_list
from chop.config import parse
from chop.errors import ConfigError
from chop.formats import INPUT_OPERANDS, OPERANDS
from chop.studies.settings import StudyConfig
from chop.workloads.settings import WorkloadConfig

JOBS = (
    *(WorkloadConfig, CompressConfig, QuantizeSweepConfig, PruneSweepConfig, PrecisionConfig),
    *(NasConfig, SensitivityConfig, LowerConfig, EmitConfig, ShardConfig, BenchModelConfig),
    *StudyConfig.__subclasses__(),
)


@pytest.mark.parametrize("settings", JOBS)
def test_no_field_of_a_job_takes_a_value_of_another_type(settings):
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        wrong = object()
        with pytest.raises(ConfigError, match=rf"\.{field.name}: (expected|got) .*object"):
            settings(**{field.name: wrong})
        if is_list(hints[field.name]):
            with pytest.raises(ConfigError, match=rf"\.{field.name}: expected a list of"):
                settings(**{field.name: "8.auto"})


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        (CompressConfig, {"max_drop": "1%"}, "max_drop: expected float, got '1%'"),
        (
            CompressConfig,
            {"layers": {"fc1": "4.auto"}},
            r"layers.fc1: .*. Example: --layers .fc1={",
        ),
        (PrecisionConfig, {"ranges": {"block_size": 16}}, "ranges.block_size: expected a list"),
    ],
)
def test_a_wrong_value_is_one_sentence(settings, given, message):
    with pytest.raises(ConfigError, match=message):
        settings(**given)


def test_lists_paths_and_numpy_numbers_are_as_those_of_files():
    given = {"formats": ["8.auto", "mxint"], "out": "runs/x", "dataset": Path("data.csv")}
    config = CompressConfig(**given, limit=np.int64(3), max_drop=np.float32(0.5))
    assert (config.formats, config.out) == (("8.auto", "mxint"), Path("runs/x"))
    assert (config.dataset, config.limit, config.max_drop) == ("data.csv", 3, 0.5)
    assert type(config.limit) is int and type(config.max_drop) is float


def test_the_operands_of_compress_are_those_that_an_operator_reads():
    """Help imports no format. The default depends on the model."""
    assert CompressConfig.operands is None and OPERANDS[:-1] == INPUT_OPERANDS


@pytest.mark.parametrize(
    ("make", "given", "repeated"),
    [
        (CompressConfig, {"method": ("gptq", "awq", "gptq")}, "method: 'gptq'"),
        (CompressConfig, {"formats": ("8.auto", "8.auto")}, "formats: '8.auto'"),
        (CompressConfig, {"formats": ("mxint8", "mxint:width=8")}, r"formats: 'MXInt\(.*\)'"),
        (PruneSweepConfig, {"methods": ("random", "random")}, "methods: 'random'"),
        (PrecisionConfig, {"goals": ("kl", "bits", "kl")}, "goals: 'kl'"),
        (SensitivityConfig, {"metrics": ("mse", "mse")}, "metrics: 'mse'"),
        (WorkloadConfig, {"class_names": ("cat", "cat")}, "class_names: 'cat'"),
    ],
)
def test_a_name_is_given_once(make, given, repeated):
    with pytest.raises(ConfigError, match=f"^{repeated} is given twice; expected each once"):
        make(**given)


@pytest.mark.parametrize("given", [{"pixel_mean": (127.5,)}, {"pixel_std": (1.0, 127.5)}])
def test_means_of_pixels_from_0_to_255_are_refused(given):
    message = f"{next(iter(given))}: got 127.5, expected .* to 1. Divide a mean and a .* by 255"
    with pytest.raises(ConfigError, match=message):
        WorkloadConfig(**given)


def test_the_size_of_images_has_an_example():
    with pytest.raises(ConfigError, match="Example: 224, or 224,320 for height and width"):
        parse(WorkloadConfig, {"image_size": ["8x8"]}, "chop compress")
