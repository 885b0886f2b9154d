"""Python calls with wrong inputs: an error of chop with one sentence about what is wrong."""

import math
import sys

import pytest
import torch
from torch import nn

import chop
from chop import MaseGraph, passes
from chop.actions.evaluate.card import find_card
from chop.actions.evaluate.settings import EvaluateConfig
from chop.base.notices import forget_notices
from chop.bench import Variant, paired_ratio
from chop.data import get_tokenizer, strided_windows
from chop.distributed import parse_mesh
from chop.errors import ChopError, options_in_messages
from chop.formats import Integer, QuantSpec
from chop.models import load_model
from chop.search import Choice, Goal, Search, SearchSpace
from chop.train import Metric, calibration_batches, evaluate, fit, predict
from chop.workloads.workload import Workload

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
SPACE = SearchSpace((Choice("a", {"1": 1}),))
SMALL = {"formats": ("8.auto",), "qat_epochs": 0, "bench_seconds": 0.0}


def net(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


def with_nan():
    model = net()
    nn.init.constant_(model[2].bias, math.nan)
    return model


class Dropping(nn.Module):
    """Drops outputs in evaluation mode as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x))


class First(Dropping):
    """Returns a single row for a batch."""

    def forward(self, x):
        return self.layer(x[:1])


def clears(model):
    nn.init.zeros_(model[0].weight)
    return 1.0


def graph():
    return MaseGraph(net(), dummy_in={"input": X[:4]})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda: chop.quantize(with_nan(), data=X),
            r"weights of the float model have NaN: 2.bias \(2 of 2 numbers\)",
        ),
        (lambda: MaseGraph(net(), custom_ops=3), "custom_ops: expected a list"),
        (lambda: graph().replace("_0", nn.ReLU()), "mg.replace: expected a node, got str"),
        (lambda: graph().erase("_0"), "mg.erase: expected a node, got str"),
        (lambda: chop.compress(net(), None), "data: expected labeled rows, such as"),
        (
            lambda: chop.compress(net(), (X, Y), evaluate=lambda m: sys.exit(0), **SMALL, out="o"),
            "evaluate 'score': .*SystemExit: 0",
        ),
        (lambda: paired_ratio([], []), "as many numbers above as below, got 0 and 0"),
        (lambda: paired_ratio([1.0], [0.0]), "expected positive numbers above and below, got 0.0"),
        (lambda: SearchSpace(3), "choices: expected a tuple of choices, got 3"),
        (lambda: load_model(3), r"name_or_path: expected str or Path, got 3 \(int\)"),
        (lambda: chop.quantize(nn.ModuleList([nn.Linear(2, 2)])), "ModuleList has no forward"),
        (lambda: graph().operator("_0"), "mg.operator: expected a node, got str"),
        (lambda: graph().get_module("_0"), "mg.get_module: expected a node, got str"),
        (lambda: chop.quantize(net(), data=torch.tensor(3.0)), "column .* got a single number"),
        (lambda: [*calibration_batches(net(), (X, Y), rows=0)], "rows: got 0, expected 1 or more"),
        (lambda: Integer(8, 4).decode(X), "integer: expected a result of encode, got Tensor"),
        (lambda: load_model("bert-tiny", num_labels=0), "num_labels: got 0, expected 1 or more"),
        (lambda: chop.compress(net(), {"test": (X, Y)}), "data: expected a split train as well"),
        (lambda: fit(nn.Sequential(nn.ReLU()), (X, Y)), "the model has no parameters"),
        (lambda: Search(SPACE, lambda c: 1, Goal("x")), "measure: expected a function of a"),
        (lambda: Search(SPACE, 3, Goal("x")), "measure: expected a function, got 3"),
        (
            lambda: chop.quantize(net(), data={"data": X, "frame": None}),
            "expected a column of numbers, one per row, got None",
        ),
        (lambda: chop.compress(net(), (None, Y)), "of arrays, got None for X; pass one value"),
        (lambda: MaseGraph.from_checkpoint(__file__), "file '.*py' is no checkpoint of chop"),
        (
            lambda: passes.load_mase_graph_interface_pass(None, __file__),
            "py' is a file, expected the folder of a checkpoint",
        ),
        (
            lambda: chop.compress(net(), (X, Y), skip=("0", "2"), **SMALL, out="o"),
            "skip: no layer remains to quantize",
        ),
        *(
            (
                lambda skip=skip: chop.compress(net(), (X, Y), skip=(skip,), **SMALL, out="o"),
                f"skip: no layer to quantize matches '{skip}': choose from: 0, 2.",
            )
            for skip in ("output", "1", "classifier")
        ),
        (
            lambda: find_card(EvaluateConfig(model="o", card=True)),
            "only folders of Hugging Face models have a model card, and 'o' is none",
        ),
        (lambda: parse_mesh("1000x1000"), "mesh: got 1,000,000 processes, expected at most 16,384"),
        (lambda: graph().draw(3), "file: expected str or Path, got 3"),
        (lambda: MaseGraph.from_checkpoint("no/a"), "The folder 'no' does not exist"),
        (
            lambda: chop.compress(net(), (X, Y), evaluate=clears, **SMALL, out="o"),
            r"evaluate 'clears': changes the weights of the model \(0.weight\)",
        ),
        (
            lambda: evaluate(First(), (X, Y)),
            r"expected logits of \(B, C\) and labels of \(B,\), got \(1, 2\) and \(40,\)",
        ),
        (lambda: chop.quantize(net(), data=["a", "b"]), "got the text 'a'; tokenize texts"),
        (
            lambda: MaseGraph(net(), cf_args={"foo": 1}),
            "expected a parameter of Sequential.forward",
        ),
        (lambda: graph().fit({"foo": X}), "the graph has no input 'foo': choose from: input"),
        (lambda: graph().export("folder/"), "'folder/': expected a path with a file name"),
        (
            lambda: chop.quantize(net(), data=((X, X), (Y, Y))),
            r"row 0 has an array of shape \(40, 8\); expected one shape. A tuple of tuples",
        ),
        (lambda: graph().diff(net()), "mg.diff: expected a MaseGraph, got Sequential"),
        (
            lambda: chop.compress(net(), (X, Y), (X[:, :5], Y), **SMALL, out="o"),
            r"cannot take rows of 'own data \(test rows\)'",
        ),
        (
            lambda: predict(net(), (X[:, :5], Y)),
            r"cannot take the rows, input \(40, 5\)",
        ),
        (lambda: evaluate(net().to("meta"), (X, Y)), "'Sequential' has weights without values"),
        (lambda: Variant("a", 3), "variant 'a': expected a function, got 3"),
        (lambda: [*strided_windows(range(9), 4, 5)], "stride: expected 1 to the window length 4"),
    ],
)
def test_the_message_names_what_is_wrong(call, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ChopError, match=expected):
        call()


@pytest.mark.parametrize(
    ("like", "expected"),
    [
        (net(9), "layer '0' is Linear.*out_features=9.* there and PackedLinear"),
        (nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2)), "layer '1' is Linear.*ReLU"),
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU()), "layer '2' is only in the graph"),
        (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), "layer '1' is Tanh.*ReLU"),
    ],
)
def test_to_module_refuses_a_model_of_another_structure(like, expected, tmp_path):
    chop.save(chop.quantize(net(), "8.auto", X), tmp_path / "small")
    with pytest.raises(ChopError, match=f"to_module: like: {expected}"):
        MaseGraph.from_checkpoint(tmp_path / "small").to_module(like=like)


@pytest.mark.parametrize("name", ["gptq", "learned_rounding", "calibrate", "share_scales"])
def test_the_graph_of_a_quantized_model_is_a_quantized_graph(name):
    mg = MaseGraph(chop.quantize(net(), "4.auto", X), dummy_in={"input": X[:4]})
    settings = {} if name == "share_scales" else {"batches": [{"input": X}]}
    changed, _ = getattr(passes, f"{name}_transform_pass")(mg, settings)
    assert changed.provenance[-1].name == f"{name}_transform_pass"
    with pytest.raises(ChopError, match="run quantize_transform_pass"):
        getattr(passes, f"{name}_transform_pass")(graph(), settings)


def test_the_line_of_a_condition_is_one_of_the_model():
    with pytest.raises(ChopError, match=r"input.shape\[1\] == 8 \(fixed at capture\)"):
        graph().model(torch.randn(2, 5))


def test_messages_name_no_options_of_commands():
    with options_in_messages(False), pytest.raises(ChopError, match=r"\(option tokenizer\)"):
        get_tokenizer("./nosuch")


def test_a_loss_that_is_nan_is_reported_once(caplog):
    fit(with_nan(), (X, Y), epochs=3)
    assert [each.message for each in caplog.records] == [
        "training diverged: the loss is NaN in epoch 1. Use a lower learning rate."
    ]


def test_training_a_model_with_softmax_is_reported_once():
    model = nn.Sequential(net(), nn.Softmax(-1))
    forget_notices()
    with pytest.warns(UserWarning, match="returns probabilities, as softmax does") as warned:
        fit(model, (X, Y), epochs=2, batch_size=8)
    assert len(warned) == 1


def test_test_rows_that_are_training_rows_are_reported(caplog):
    Workload.of(net(), (X, Y), (X[20:], Y[20:]))
    assert "20 of 20 test rows are also training rows" in caplog.text
    caplog.clear()
    Workload.of(net(), (X[:25], Y[:25]), (X[20:], Y[20:]))
    few = torch.zeros(60, 8)
    Workload.of(net(), (few[:40], Y), (few[40:], Y[:20]))
    assert "training rows" not in caplog.text


def test_outputs_that_change_from_call_to_call_are_reported(caplog):
    Workload.of(Dropping(), (X, Y))
    assert "draws random numbers in evaluation mode" in caplog.text
    caplog.clear()
    Workload.of(nn.Sequential(nn.Linear(8, 2), nn.Dropout()), (X, Y))
    assert "draws random numbers" not in caplog.text


def test_columns_that_no_input_takes_are_reported(caplog):
    chop.quantize(net(), data={"input": X, "other": X})
    assert "No input has the name of the columns 'other'. They are not used." in caplog.text


@pytest.mark.parametrize(
    ("fraction", "share"),
    [(99, "0% of the weights become zero and 100%"), (-99, "100% of"), (10, "and [1-9][0-9]% are")],
)
def test_a_fraction_that_loses_weights_is_reported(fraction, share):
    with pytest.warns(UserWarning, match=f"2 layers lose weights to the format.*{share}") as given:
        chop.quantize(net(), f"8.{fraction}", data=X)
    assert len(given) == 1


def test_weights_that_are_partly_clipped_and_otherwise_zero_are_reported():
    layer = nn.Linear(10, 1, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[40.0, -40.0, *[0.1] * 8]])
    with pytest.warns(UserWarning, match="In '0'.* 80% of the weights become zero and 20% are"):
        chop.quantize(nn.Sequential(layer), "4.-2", data=torch.randn(9, 10))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda: Metric("a", max, lower_is_better=True),
            "Metric: unknown argument 'lower_is_better'",
        ),
        (lambda: Metric("a"), "Metric: expected the argument 'score'"),
        (lambda: Goal("a", minimize=True), "Goal: unknown argument 'minimize'"),
        (lambda: Choice("a"), "Choice: expected the argument .options."),
        (lambda: QuantSpec(weigth=Integer(8, 4)), "QuantSpec: .*'weigth': did you mean 'weight'"),
    ],
)
def test_dataclasses_check_the_names_of_their_fields(create, message):
    with pytest.raises(ChopError, match=message):
        create()


def test_compressed_models_are_not_compressed_again(caplog, tmp_path):
    quantized = chop.quantize(net(), "8.auto", X)
    with pytest.raises(ChopError):
        chop.compress(quantized, None)
    assert "the model has quantized layers" in caplog.text
    chop.save(quantized, tmp_path / "small")
    packed = MaseGraph.from_checkpoint(tmp_path / "small").to_module(like=net())
    for run in (chop.quantize, chop.compress):
        with pytest.raises(ChopError, match="is compressed already; pass the original model"):
            run(packed, data=(X, Y))


def test_a_pass_reports_a_fraction_that_clips_weights():
    rule = {"config": {"name": "integer", "width": 8, "frac_width": 12}}
    with pytest.warns(UserWarning, match="1 layer loses weights to the format. In '0'.*'8.auto'"):
        passes.quantize_transform_pass(
            MaseGraph(net(), dummy_in={"input": X}), {"by": "name", "0": rule}
        )


@pytest.mark.parametrize("format", ["8.4", "8.7", "2.auto", "8.auto", "mxint:width=4"])
def test_a_fraction_that_fits_the_weights_is_not_reported(format, recwarn):
    chop.quantize(net(), format, data=X)
    assert not any("lose weights" in str(each.message) for each in recwarn)
