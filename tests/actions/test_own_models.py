"""Models of one's own with data that their code, dtype or columns do not take."""

import logging

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.workloads.checkpoint import load_checkpoint
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload, raise_to_graph

X, Y = torch.randn(40, 8), torch.arange(40) % 3


def workload(model, x):
    return Workload.of(model, train=(x, Y), test=(x, Y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_inputs_are_in_the_dtype_of_the_model_and_it_is_said(dtype, caplog):
    caplog.set_level(logging.WARNING)
    found = workload(nn.Linear(8, 3).to(dtype), X)
    assert found.train.columns.keys() == found.test.columns.keys()
    assert {x.dtype for x in found.test.columns.values()} == {dtype}
    assert f"inputs are converted to {dtype}" in caplog.text
    mg = raise_to_graph(found)
    assert math_close(mg.model(*found.example().values()), found)


def math_close(logits, found):
    (x,) = found.example().values()
    return torch.equal(logits, found.model(x))


class Halved(nn.Module):
    def forward(self, x):
        return x.half()


@pytest.mark.parametrize("model", [nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 3), nn.Flatten())])
def test_other_inputs_stay_as_they_are(model, caplog):
    mixed = nn.Sequential(nn.Linear(8, 8), Halved(), nn.Linear(8, 3).half())
    for given in (model, mixed, nn.Flatten()):
        assert workload(given, X).test.columns["input 0"].dtype == torch.float32
    indices = workload(nn.Embedding(9, 3).half(), Y[:, None]).test
    assert indices.columns["input 0"].dtype == torch.int64
    assert all("are also training rows" in message for message in caplog.messages)


def test_columns_that_are_no_inputs_are_named(tmp_path, caplog):
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n"
        "    def __init__(self): super().__init__(2, 2)\n"
        "    def forward(self, inputs): return super().forward(inputs)\n"
    )
    lines = ["a,kind,b,label", *(f"0.{i},cat,{i}.5,{i % 2}" for i in range(9))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))

    def load(**settings):
        model, data = f"{tmp_path}/net.py:Net", str(tmp_path / "rows.csv")
        return load_checkpoint(WorkloadConfig(model, data, out=tmp_path / "out", **settings))

    _, data, *_ = load()
    assert set(data["train"].column_names) == {"x", "label"}
    assert "columns without numbers are not used as inputs: kind (such as 'cat')" in caplog.text
    lines[3] = lines[3].replace("0.2", "?")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    caplog.clear()
    load()
    assert "as inputs: a (8 of 9 rows have numbers, one has '?'), kind" in caplog.text
    with pytest.raises(ConfigError, match=r"are texts in kind \(such as 'cat'\): save them as n"):
        load(input_columns=("b", "kind"))
    (tmp_path / "rows.csv").write_text("\n".join(["text", *"abababab"]))
    with pytest.raises(ConfigError, match="left for inputs in addition to the labels 'text'"):
        load(label_column="text")
