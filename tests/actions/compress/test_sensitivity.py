"""Sensitivity of each layer on the page of `chop compress`, against models made by hand."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, kl_divergence

from chop import MaseGraph, passes
from chop.actions.compress.job import CompressConfig, compress
from chop.actions.compress.sensitivity import exact_weights, layer_sensitivities
from chop.formats import QuantSpec, parse_format_string
from chop.report.document import read_document
from chop.train import TASKS, Rows, read_rows
from chop.workloads.workload import Workload

FORMAT = parse_format_string("3.auto")
PLENTY = 100_000
"""Rows that formats were evaluated on, of which a share pays for all layers."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.same = nn.Linear(6, 6), nn.Linear(6, 6)
        self.middle = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3, bias=False)
        self.same.weight = self.first.weight
        self.own = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        x = self.same(torch.relu(self.first(x)))
        x = x + F.linear(x, self.own)
        return self.last(torch.relu(self.middle(x)))


def data(rows=96):
    torch.manual_seed(1)
    x = torch.randn(rows, 6)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


def quantized(model, *, by, rules, batch):
    mg = MaseGraph(model, dummy_in=batch)
    mg, _ = passes.quantize_transform_pass(mg, {"by": by, **rules})
    return passes.calibrate_transform_pass(mg, {"batches": [batch]}, inplace=True)[0]


@pytest.fixture(name="whole")
def _whole():
    rules = {name: {"config": QuantSpec.uniform(FORMAT)} for name in ("linear", "relu", "add")}
    return quantized(Net(), by="type", rules=rules, batch={"x": data()[0]})


def measured(mg, layers, task="classification", evaluated=PLENTY, exact=None):
    x, y = data()
    rows = read_rows((x, y if task == "classification" else torch.randn(len(x), 3)))
    return layer_sensitivities(mg, layers, rows, TASKS[task], evaluated=evaluated, exact=exact)


def taken(count=32):
    (x,) = read_rows(data()).spread(count).columns.values()
    return x


def test_one_layer_alone_is_rounded(whole):
    state = copy.deepcopy(whole.model.state_dict())
    before = whole.model(taken())
    found = measured(whole, ["last", "first", "own", "middle"])
    assert (found.metric, found.rows) == ("kl", 32) and "own" not in found.by_layer
    reference = Net()(taken())
    alone = copy.deepcopy(whole.model)
    for name, module in alone.named_modules():
        if name != "last" and hasattr(module, "spec") and not list(module.children()):
            module.spec = QuantSpec()
    p, q = (Categorical(logits=y.double()) for y in (reference, alone(taken())))
    assert found.by_layer["last"] == pytest.approx(kl_divergence(p, q).mean().item(), rel=1e-4)
    assert min(found.by_layer.values()) > 0
    torch.testing.assert_close(whole.model(taken()), before, rtol=0, atol=0)
    assert all(torch.equal(x, state[name]) for name, x in whole.model.state_dict().items())


def test_a_shared_weight_is_rounded_wherever_it_is_taken(whole):
    found = measured(whole, ["first"]).by_layer["first"]
    model = Net()
    weight = whole.model.first.effective("weight")
    expected = whole.model.first.quantize("weight", weight)
    first = copy.deepcopy(whole.model.first)
    with torch.no_grad():
        model.same.weight = nn.Parameter(expected)
        model.first = first
        p, q = (Categorical(logits=m(taken()).double()) for m in (Net(), model))
    assert found == pytest.approx(kl_divergence(p, q).mean().item(), rel=1e-3)


def test_numbers_are_compared_by_their_squared_change(whole):
    found = measured(whole, ["last"], "regression")
    last = copy.deepcopy(whole.model.last)
    with torch.no_grad():
        model = Net()
        reference = model(taken())
        model.last = last
        expected = F.mse_loss(model(taken()), reference).item()
    assert found.metric == "mse" and found.by_layer["last"] == pytest.approx(expected, rel=1e-4)


def test_the_time_that_it_takes_is_bounded(whole):
    layers = ["last", "first", "middle"]
    runs = []
    whole.model.register_forward_pre_hook(lambda _, inputs: runs.append(1))
    assert len(measured(whole, layers, evaluated=80).by_layer) == 3
    assert measured(whole, layers, evaluated=60).by_layer.keys() == {"last", "first"}
    assert len(runs) == 4 + 3
    assert measured(whole, layers, evaluated=39) is None and len(runs) == 7
    assert measured(whole, [], evaluated=PLENTY) is None


def test_weights_that_a_method_has_written_are_compared_with_float_ones():
    model, rows = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), data()
    batch = {"input": rows[0]}
    mg = quantized(
        model, by="type", rules={"linear": {"config": QuantSpec.uniform(FORMAT)}}, batch=batch
    )
    rounded, _ = passes.gptq_transform_pass(mg, {"batches": [batch]})
    plain, _ = passes.add_common_metadata_analysis_pass(
        passes.init_metadata_analysis_pass(MaseGraph(model, dummy_in=batch))[0]
    )
    exact = exact_weights(["gptq"], "GPTQ", plain)
    found = measured(rounded, ["0"], exact=exact)
    with torch.no_grad():
        alone = nn.Sequential(rounded.model.get_submodule("0"), model[1], model[2])
        p, q = (Categorical(logits=m(taken()).double()) for m in (model, alone))
    expected = kl_divergence(p, q).mean().item()
    assert found.by_layer["0"] == pytest.approx(expected, rel=1e-4)
    assert measured(rounded, ["0"]).by_layer["0"] != pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("method", "title", "expected"),
    [
        ((), "PTQ", {}),
        (("awq",), "AWQ", {}),
        (("gptq",), "QAT", {}),
        (("smoothquant", "gptq"), "SmoothQuant+GPTQ", None),
        (("rotate", "learned_rounding"), "rotated+learned rounding", None),
    ],
)
def test_float_weights_are_known_unless_a_method_changed_them_before(method, title, expected):
    assert exact_weights(method, title, MaseGraph(nn.Linear(2, 2))) == expected


def test_the_page_and_the_result_have_it_for_each_layer(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = data(400)
    workload = Workload.of(model, train=Rows({"x": x}, y), test=Rows({"x": x}, y), task=None)
    config = CompressConfig(
        out=tmp_path, formats=("4.auto",), method=("gptq",), qat_epochs=0, keep_best=True
    )
    config = dataclasses.replace(config, bench_seconds=0, force=True)
    result = compress(config, workload)
    assert result["sensitivity"]["metric"] == "kl"
    assert all(row["sensitivity"] > 0 for row in result["layers"])
    assert all(row["weight_error"] > 0 for row in result["layers"])  # against the float weights
    table = read_document(tmp_path).tables[0]
    place = table.columns.index("sensitivity")
    assert [row[place] for row in table.values] == [r["sensitivity"] for r in result["layers"]]
    assert "sensitivity" in table.shaded and "mean KL divergence" in table.title
