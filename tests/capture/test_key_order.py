"""Mappings as inputs: their keys in another order, missing ones, additional ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.capture.tracer import capture
from chop.errors import GuardError

Batch = Mapping[str, Any]


class OfParts(nn.Module):
    """Takes a mapping."""

    def __init__(self, join: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.join = join

    def forward(self, batch: Any) -> Tensor:
        return self.layer(self.join(batch))


def looped(batch: Batch) -> Tensor:
    return torch.cat([2 * part for part in batch.values()], -1)


def zipped(batch: Batch) -> Tensor:
    return torch.cat([n * batch[key] for n, key in enumerate(batch)], -1)


def nested(batch: Any) -> Tensor:
    return torch.cat(list(batch[1]["inner"].values()), -1)


def by_key(batch: Batch) -> Tensor:
    return torch.cat([batch["a"], batch["b"]], -1)


def summed(batch: Batch) -> Tensor:
    return sum(batch.values()).repeat(1, 2)


def example(rows: int = 3, order: str = "ab") -> dict[str, Tensor]:
    return {key: torch.randn(rows, 4) for key in order}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("join", [looped, zipped])
def test_another_order_is_refused_where_the_model_goes_by_it(
    join: Callable[[Any], Tensor], kind: type
) -> None:
    model = OfParts(join)
    captured = capture(model, {"batch": kind(example())})
    batch = kind(example(5))
    assert torch.equal(captured(batch), model(batch))
    with pytest.raises(
        GuardError, match="keys in the order a, b, which the model depends on, got b"
    ):
        captured(kind(example(5, "ba")))


def test_order_within_other_inputs_counts() -> None:
    captured = capture(OfParts(nested), {"batch": (torch.ones(3, 1), {"inner": example()})})
    with pytest.raises(GuardError, match=r"batch\[1\]\['inner'\] with keys in the order a, b"):
        captured((torch.ones(3, 1), {"inner": example(3, "ba")}))


@pytest.mark.parametrize("join", [by_key, summed])
def test_another_order_is_taken_where_it_changes_nothing(join: Callable[[Any], Tensor]) -> None:
    model = OfParts(join)
    captured = capture(model, {"batch": example()})
    batch = example(5, "ba")
    torch.testing.assert_close(captured(batch), model(batch))


@pytest.mark.parametrize(("order", "came"), [("a", "the keys a,"), ("abc", "the keys a, b, c")])
def test_other_keys_are_refused_by_name(order: str, came: str) -> None:
    captured = capture(OfParts(by_key), {"batch": example()})
    with pytest.raises(GuardError, match=f"the keys a, b, got {came.rstrip(',')}") as error:
        captured(example(100, order))
    assert len(str(error.value)) < 200


def test_the_order_is_saved(tmp_path: Path) -> None:
    mg = MaseGraph(OfParts(looped), dummy_in={"batch": example(order="ba")})
    mg.export(tmp_path / "model")
    read = MaseGraph.from_checkpoint(tmp_path / "model")
    batch = example(5, "ba")
    assert torch.equal(read.model(batch), mg.model(batch))
    with pytest.raises(GuardError, match="in the order b, a"):
        read.model(example(5, "ab"))
