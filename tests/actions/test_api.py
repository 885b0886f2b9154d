"""`chop.quantize` and `chop.compress`: a model goes in, and one of its class comes out."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import chop
from chop.errors import ConfigError, options_in_messages
from chop.nn.quantized import QuantLinear
from chop.train import fit

X = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = Net()
    fit(model, (X, Y), epochs=30, lr=1e-2)
    return model


ROWS = {
    "pairs": (X, Y),
    "inputs alone": X,
    "an array": X.numpy(),
    "columns": {"x": X, "labels": Y},
    "columns without labels": {"x": X},
    "a loader": DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True),
    "splits": {"train": (X, Y), "test": (X[:2], Y[:2])},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ROWS)
def test_a_model_is_quantized_on_rows_of_any_kind(net, kind):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    small = chop.quantize(net, "4.auto", ROWS[kind])
    assert type(small) is Net and small is not net and isinstance(small.first, QuantLinear)
    assert small.first.spec.is_fitted and small.state_dict().keys() == before.keys()
    assert not torch.equal(small(X), net(X))
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert type(net.first) is nn.Linear


def test_scales_are_those_of_the_passes(net):
    mg = chop.MaseGraph(net, dummy_in={"x": X[:3]})
    linear = {"config": {"name": "mxint", "width": 4}}
    mg, _ = chop.passes.quantize_transform_pass(mg, {"by": "type", "linear": linear})
    assert torch.equal(chop.quantize(net, "mxint:width=4", X)(X), mg.model(X))


def test_weights_alone_and_chosen_operators(net):
    small = chop.quantize(net, "mxint:width=4", X, weights_only=True, operators=["linear"])
    assert small.first.spec.data_in.is_identity and not small.first.spec.weight.is_identity
    loss = small(X).square().sum()
    loss.backward()
    assert small.first.weight.grad is not None and net.first.weight.grad is None


def test_transformers_need_no_rows():
    from chop.models import load_model

    model = load_model("bert-tiny")
    small = chop.quantize(model)
    assert type(small) is type(model) and small.config is not None


REFUSED = {
    "format": (("9",), {}, "expected width.fraction"),
    "operator": (("8.auto",), {"operators": ["liner"]}, "did you mean 'linear'"),
    "no such operator": (("8.auto",), {"operators": ["conv2d"]}, "none of the operators conv2d"),
    "rows": (("8.auto", {"y": X, "z": Y}), {}, "at least one input in common"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_quantized_is_refused(net, case):
    args, named, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        chop.quantize(net, *args, **named)


@pytest.mark.filterwarnings("ignore:.* lose weights to the format:UserWarning")
def test_a_model_is_compressed_in_one_call(trained, tmp_path, capsys):
    settings = {"formats": ("8.auto",), "qat_epochs": 0, "bench_seconds": 0}
    found = chop.compress(trained, (X, Y), max_drop=0.1, out=tmp_path / "run", **settings)
    assert type(found.model) is Net and found.result["saved"]["format"] == "integer 8.auto"
    assert "<h3>Net on own data</h3>" in found._repr_html_()
    assert str(found) == repr(found) == str(found.result)
    assert str(found).startswith(
        "No test rows were given, so these numbers may be too good: saved integer"
    ) and "float" in str(found)
    assert (found.folder / "model.pt").exists() and found.result["row_counts"]["test"] == 24
    agree = (found.model(X).argmax(1) == trained(X).argmax(1)).float().mean()
    assert agree > 0.9
    with pytest.raises(ConfigError, match=r"chop\.compress: unknown key 'format'.*'formats'"):
        chop.compress(trained, (X, Y), format="8.auto", out=tmp_path)
    with pytest.raises(ConfigError, match="unknown split .*did you mean|unknown split .*choose"):
        chop.compress(trained, {"train": (X, Y), "dev": (X, Y)}, out=tmp_path)
    none = chop.compress(
        trained,
        {"train": (X, Y)},
        (X, Y),
        max_drop=0.0,
        out=tmp_path / "none",
        formats=("2.8",),
        qat_epochs=0,
        bench_seconds=0,
    )
    assert none.model is None and none.result["saved"] is None


def test_errors_name_keyword_arguments_and_no_options(net, tmp_path):
    random = torch.randint(0, 2, (120,), generator=torch.Generator().manual_seed(1))
    reason = r"\(train_epochs\); force continues"
    with options_in_messages(False), pytest.raises(ConfigError, match=reason) as refused:
        chop.compress(net, (X, random), max_drop=0.01, out=tmp_path / "run")
    with options_in_messages(False):
        assert "--" not in str(refused.value)


@pytest.mark.parametrize("layer", [nn.Linear(8, 4), nn.Conv2d(1, 2, 3), nn.Embedding(4, 2)])
def test_a_single_layer_is_to_be_put_into_a_model(layer):
    refusal = r"got a single \w+: pass nn\.Sequential\(layer\)"
    with pytest.raises(ConfigError, match=f"^chop.quantize: .*{refusal}"):
        chop.quantize(layer, "8.auto", X)
    with pytest.raises(ConfigError, match=f"^chop.compress: .*{refusal}"):
        chop.compress(layer, (X, torch.zeros(len(X)).long()))
