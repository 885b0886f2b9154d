"""Every job runs in the precision of products that its settings name."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from chop import runs
from chop.actions.bench.job import bench_model
from chop.actions.bench.report import measure_and_write
from chop.actions.bench.settings import BenchModelConfig
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.search.job import find_job, run_search
from chop.actions.search.sensitivity import measure_sensitivity
from chop.actions.search.settings import NasConfig, PrecisionConfig, SensitivityConfig
from chop.actions.shard.job import shard
from chop.actions.shard.settings import ShardConfig
from chop.actions.sweep.prune import prune_sweep
from chop.actions.sweep.quantize import quantize_sweep
from chop.actions.sweep.settings import PruneSweepConfig, QuantizeSweepConfig
from chop.kernels.matmul_precision import allows_bfloat16
from chop.studies.settings import BenchGenerateConfig
from chop.workloads.workload import Workload
from tests.workloads import plain, rows


class StoppedError(Exception):
    """The job has begun."""


def workload():
    train, test = rows()
    return Workload.of(plain(), train, test)


def search(name):
    job = find_job(name)
    own = dataclasses.replace(job, load=lambda config: SimpleNamespace(search=None))
    return lambda config: run_search(own, config)


JOBS = {
    "compress": (lambda config: compress(config, workload()), CompressConfig),
    "sweep quantize": (lambda config: quantize_sweep(config, workload()), QuantizeSweepConfig),
    "sweep prune": (lambda config: prune_sweep(config, workload()), PruneSweepConfig),
    "search precision": (search("precision"), PrecisionConfig),
    "search nas": (search("nas"), NasConfig),
    "search sensitivity": (lambda c: measure_sensitivity(c, workload()), SensitivityConfig),
    "lower": (lambda config: lower(config, workload()), LowerConfig),
    "shard": (shard, ShardConfig),
    "bench model": (bench_model, BenchModelConfig),
    "bench generate": (lambda c: measure_and_write(bench_model, c), BenchGenerateConfig),
}


@pytest.mark.parametrize(("job", "settings"), JOBS.values(), ids=JOBS)
def test_a_job_runs_in_the_precision_of_its_settings(job, settings, tmp_path, monkeypatch):
    seen = []

    def start(*args, **kwargs):
        seen.append((torch.get_float32_matmul_precision(), allows_bfloat16()))
        raise StoppedError

    monkeypatch.setattr(runs, "start", start)
    for given in ("medium", "high", None):
        with pytest.raises(StoppedError):
            job(settings(out=tmp_path, matmul_precision=given))
        assert torch.get_float32_matmul_precision() == "highest"
    assert seen == [("medium", True), ("high", False), ("highest", False)]
