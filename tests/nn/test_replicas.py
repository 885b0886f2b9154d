"""Data-parallel training: all processes train one model."""

from __future__ import annotations

import gc
import warnings
import weakref
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from chop.base.notices import AdjustedWarning
from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec, ScaleInteger
from chop.nn.quantized.replicas import synchronize
from chop.passes.module import quantize_module_transform_pass
from tests.distributed import cluster

LSQ = QuantSpec(ScaleInteger(4), ScaleInteger(4, granularity="channel"), gradient="lsq")
AUTO = QuantSpec(Integer(6, "auto"), Integer(6, 4), data_out=Integer(8, "minmax"))
SPECS = {"lsq": LSQ, "auto": AUTO, "static": QuantSpec(ScaleInteger(8, scales=(0.05,)))}
STEPS = 20


class Net(nn.Module):
    """Two layers, of which the second may be skipped."""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(6, 8), nn.ReLU()
        self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, skips: bool = False) -> Tensor:
        x = self.act(self.first(x))
        return self.last(x if skips else x + self.second(x))


def quantized(spec: QuantSpec) -> Any:
    torch.manual_seed(0)
    rules = {"linear": {"config": spec}, "relu": {"config": spec.keeping("data_in")}}
    return quantize_module_transform_pass(Net(), {"by": "type", **rules})[0]


def batch(rank: int, step: int) -> Tensor:
    """Another one on each rank, of another magnitude."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    return (1 + 5 * rank) * torch.randn(8, 6, generator=generator)


def answers(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(torch.linspace(-4, 4, 30).reshape(5, 6))


def train(model: Any, rank: int, case: str = "plain") -> None:
    """Twenty steps."""
    model.train(case != "in eval")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        skips = case == "skips" and rank == 1 and step < 5
        if case == "accumulates":  # not as often on each process
            for part in range(1, 2 + rank):
                with model.no_sync():
                    model(batch(rank, step + part * STEPS)).square().mean().backward()
        loss = model(batch(rank, step), skips).square().mean()
        if case == "twice":
            loss = loss + model(batch(rank, step + STEPS)).square().mean()
        loss.backward()
        if case == "by hand":
            synchronize(model.module)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=1e-3)
        else:
            optimizer.step()


def described(model: nn.Module) -> dict[str, Any]:
    """The state and the answers of a model, as lists, which processes hand on."""
    return {**{n: x.tolist() for n, x in model.state_dict().items()}, "y": answers(model).tolist()}


def under_ddp(kind: str, case: str) -> dict[str, Any]:
    """Returns the state of one rank after training."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = quantized(SPECS[kind])
    if kind == "static":  # calibrated by each process for itself
        model.first.take_spec(QuantSpec(ScaleInteger(8, scales=(0.01 + rank,))))
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=case == "skips")
    if rank == 0:  # evaluation of one process waits for none
        answers(ddp)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(ddp, rank, case)
    assert sum("formats differ" in str(x.message) for x in said) == (kind == "static")
    if rank == 0:  # evaluation of one process waits for none
        answers(ddp)
    return described(model)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *(("lsq", "skips"), ("auto", "accumulates"), ("static", "plain"), ("lsq", "in eval")),
        pytest.param("lsq", "twice", marks=pytest.mark.long),
        pytest.param("auto", "twice", marks=pytest.mark.long),
        pytest.param("auto", "skips", marks=pytest.mark.long),
        pytest.param("lsq", "accumulates", marks=pytest.mark.long),
        pytest.param("lsq", "by hand", marks=pytest.mark.long),
        pytest.param("auto", "by hand", marks=pytest.mark.long),
    ],
)
def test_processes_train_one_model(kind, case):
    first, second = cluster.run(under_ddp, 2, kind, case, timeout=60)
    assert first == second
    names = [name for name in first if name.endswith(("data_in_scale", "data_in_range"))]
    assert len(names) == (0 if kind == "static" else 4)
    assert not any(first[name] == [0.0] for name in names)


def freed() -> list[bool]:
    """Returns whether two trained models, quantized in DDP and without formats, are freed."""
    dist.init_process_group("gloo")
    found = []
    for make in (partial(nn.Linear, 6, 3), partial(quantized, LSQ)):
        model = make()
        ddp = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
        for step in range(2):
            ddp(batch(0, step)).sum().backward()
            optimizer.step()
        references = weakref.ref(ddp), weakref.ref(model)
        del ddp, model, optimizer
        gc.collect()
        found.append(all(each() is None for each in references))
    return found


def test_models_that_were_trained_are_freed():
    assert cluster.run(freed, 1, timeout=60) == [[True, True]]


def after_other_formats() -> dict[str, Any]:
    """Returns one rank's state after training from scales of its own, and what moved."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = quantized(LSQ)
    own = [ScaleInteger(4, scales=(0.1 + rank,)), ScaleInteger(4, scales=(0.2 + rank,))]
    model.first.take_spec(QuantSpec(*own, gradient="lsq"))
    before = dict(model.named_parameters())
    ddp = nn.parallel.DistributedDataParallel(model)
    with pytest.warns(AdjustedWarning, match="Calibrate all on the same batches"):
        train(ddp, rank)
    assert all(x is before[name] for name, x in model.named_parameters())
    assert model.first.data_in_scale.item() != pytest.approx(0.1, abs=1e-6)
    return described(model)


def test_scales_that_take_the_start_of_the_first_process_go_on_learning():
    first, second = cluster.run(after_other_formats, 2, timeout=60)
    assert first == second


def under_fsdp(kind: str) -> dict[str, Any]:
    """Returns one rank's state after training with sharded parameters, gathered."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = quantized(SPECS[kind])
    if kind == "lsq":
        model.train()(batch(0, 0))
    for layer in (model.first, model.last):
        fully_shard(layer)
    fully_shard(model)
    train(model, rank)
    y = answers(model).tolist()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    found = {name: x.tolist() for name, x in whole.items()}
    shared = [None]
    if rank == 0:
        shared = [found]
    dist.broadcast_object_list(shared)
    again = quantized(SPECS[kind])
    again.load_state_dict({name: torch.tensor(x) for name, x in shared[0].items()})
    assert answers(again).tolist() == y
    ranges = {name: x.tolist() for name, x in model.named_buffers()}
    return {"y": y, "ranges": ranges}


@pytest.mark.parametrize("kind", [pytest.param("lsq", marks=pytest.mark.long), "auto"])
def test_sharded_parameters_train_one_model(kind):
    first, second = cluster.run(under_fsdp, 2, kind, timeout=60)
    assert first == second


def unstarted_shards() -> str:
    """The error of scales that cannot start; a forward in evaluation runs."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = fully_shard(quantized(LSQ))
    assert answers(model).isfinite().all()
    with pytest.raises(ConfigError) as error:
        model.train()(batch(0, 0))
    return str(error.value)


@pytest.mark.long
def test_scales_that_are_sharded_cannot_start():
    said = cluster.run(unstarted_shards, 2, timeout=60)
    assert all("calibrate_transform_pass, before fully_shard" in text for text in said)
