"""`chop.quantize` and `chop.compress`: a model goes in, and one of its class comes out."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import chop
from chop import MaseGraph
from chop.errors import CaptureError, CheckpointError, ConfigError, options_in_messages
from chop.nn.quantized import QuantLinear
from chop.train import fit, predict

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


QUICK = {"formats": ("8.auto",), "qat_epochs": 0, "bench_seconds": 0}

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
    found = chop.compress(trained, (X, Y), max_drop=0.1, out=tmp_path / "run", **QUICK)
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


class OnNumpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.detach().numpy()).relu()


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Traced(nn.Module):
    def forward(self, x):
        return Straight.apply(x)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [OnNumpy, Traced])
def test_own_code_of_the_model_is_read_back(kind, trained, tmp_path):
    model = nn.Sequential(trained.first, kind(), trained.last)
    found = chop.compress(model, (X, Y), out=tmp_path, max_drop=0.1, **QUICK)
    assert type(found.model[1]) is kind
    assert (found.model(X).argmax(1) == trained(X).argmax(1)).float().mean() > 0.9
    own = Straight if kind is Traced else kind
    with pytest.raises(CheckpointError, match=rf"\[{own.__name__}\] to MaseGraph.from_checkpoint"):
        MaseGraph.from_checkpoint(tmp_path / "model")
    MaseGraph.from_checkpoint(tmp_path / "model", allow=[own])


@pytest.mark.filterwarnings("ignore:.* lose weights to the format:UserWarning")
@pytest.mark.parametrize("change", ["weights", "labels", "nothing"])
def test_results_of_another_model_of_the_class_are_not_replaced_silently(change, trained, tmp_path):
    settings = QUICK | {"out": tmp_path, "max_drop": 1.0, "force": True}
    chop.compress(trained, (X, Y), **settings)
    model = Net() if change == "weights" else trained
    labels = 1 - Y if change == "labels" else Y
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chop.compress(model, (X, labels), **settings)
    texts = [str(each.message) for each in caught if "contains results" in str(each.message)]
    assert len(texts) == (change != "nothing")
    assert all("model Net, of other weights or rows. " in each for each in texts)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masks_of_pruning_do_not_prevent_compression(net, tmp_path):
    for layer in (net.first, net.last):
        prune.l1_unstructured(layer, "weight", 0.5)
    fit(net, (X, Y), epochs=30, lr=1e-2)
    prune.l1_unstructured(net.first, "bias", 0.5)
    assert not net.first.weight.is_leaf
    expected = chop.quantize(net, "8.auto", X)(X)
    found = chop.compress(net, (X, Y), out=tmp_path, max_drop=1.0, force=True, **QUICK)
    torch.testing.assert_close(found.model(X), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda output, labels: 1 / 0])
def test_a_loss_needs_training(loss, net, tmp_path):
    with pytest.raises(ConfigError, match="loss: nothing is trained, since qat_epochs is 0"):
        chop.compress(net, (X, Y), loss=loss, out=tmp_path, **QUICK)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 2)

    def forward(self, a, b, scale=1.0):
        return self.first(a) + b[:, :1] * scale


def test_several_inputs_without_labels_are_passed_by_name():
    way_out = r"as \(\(a, b\), y\), or as \{'a': \.\.\., 'b': \.\.\.\} where no labels"
    for call in (lambda: chop.quantize(Two(), data=(X, X)), lambda: predict(Two(), (X, X))):
        with pytest.raises(ConfigError, match=way_out):
            call()
    chop.quantize(Two(), data={"a": X, "b": X})
    predict(Two(), ((X, X), Y))


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


def test_a_captured_graph_is_not_compressed_but_its_module_is(net):
    for graph in (MaseGraph(net, dummy_in={"x": X}), MaseGraph(net, dummy_in={"x": X}).model):
        with pytest.raises(ConfigError, match="pass the module that it was captured from"):
            chop.compress(graph, (X, Y))


def test_data_that_were_left_out_are_named():
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
    with pytest.raises(CaptureError, match=r"^chop.quantize: .* cannot be guessed: .* data="):
        chop.quantize(convolution, "8.auto")
    rows = torch.randn(4, 1, 8, 8)
    assert chop.quantize(convolution, "8.auto", rows)(rows).shape == (4, 2)
