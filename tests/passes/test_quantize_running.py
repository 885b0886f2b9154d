"""What training has shown of formats that were not calibrated stays with the graph."""

import copy
import pickle

import pytest
import torch

from chop import MaseGraph, passes
from chop.formats import Integer, MXInt, QuantSpec
from chop.nn.packed import pack

MXINT = QuantSpec(Integer(8, "auto"), MXInt())


def trained_graph(net_graph):
    config = {"config": {"data_in": {"name": "integer", "width": 8, "frac_width": "auto"}}}
    mg, _ = passes.quantize_transform_pass(net_graph, {"by": "type", "linear": config})
    mg.model.train()(torch.randn(8, 1, 6, 7))
    return mg


def saved(mg, folder):
    mg.export(folder / "graph")
    return MaseGraph.from_checkpoint(folder / "graph")


@pytest.mark.parametrize(
    "way",
    [
        lambda mg, folder: copy.deepcopy(mg),
        lambda mg, folder: mg.copy(),
        lambda mg, folder: pickle.loads(pickle.dumps(mg)),
        saved,
    ],
    ids=["deepcopy", "copy", "pickle", "file"],
)
def test_copies_and_files_keep_what_training_has_shown(net_graph, way, tmp_path):
    mg = trained_graph(net_graph)
    again, x = way(mg, tmp_path), 10 * torch.randn(4, 1, 6, 7)
    for name in ("fc1", "fc2"):
        assert again.modules[name].running == mg.modules[name].running != {}
    mg.model.eval(), again.model.eval()
    assert torch.equal(again.model(x), mg.model(x))


def test_calibration_takes_the_place_of_what_training_has_shown(net_graph):
    mg, x = trained_graph(net_graph), torch.randn(8, 1, 6, 7) / 32
    mg, info = passes.calibrate_transform_pass(mg, {"batches": [{"x": x}]})
    assert info["fitted"] == 2
    layer = mg.modules["fc1"]
    assert layer.spec.data_in.is_fitted and layer.operand_format("data_in") is layer.spec.data_in
    assert layer.spec.data_in.is_fitted and not layer.running
    assert layer.state_dict().keys() == {"weight", "bias"}


def test_what_only_runs_has_the_fits_of_training_in_its_formats(net_graph):
    mg, x = trained_graph(net_graph), 10 * torch.randn(4, 1, 6, 7)
    mg.model.eval()
    fitted = mg.modules["fc1"].operand_format("data_in")
    expected = mg.model(x)
    layer = mg.modules["fc1"].with_spec(MXINT)
    for twin in (layer, pack(layer)):
        settled = twin.freeze_scales()
        assert type(settled) is type(twin) and settled.spec.data_in == fitted
        assert not [name for name in settled.state_dict() if name.endswith("_range")]
        assert [name for name in twin.state_dict() if name.endswith("_range")]
    frozen, _ = passes.freeze_transform_pass(mg)
    assert frozen.modules["fc1"].spec.data_in == fitted
    assert torch.equal(frozen.model(x), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("by_graph", [False, True])
def test_folders_of_transformers_have_the_fits_of_training(
    bert_graph, bert_inputs, is_trained, by_graph, tmp_path
):
    from transformers import AutoModelForSequenceClassification

    rules = {
        "data_in": {"name": "integer", "width": 8, "frac_width": "auto"},
        "weight": MXINT.weight,
    }
    rules = {"by": "type", "linear": {"config": rules}}
    mg, _ = passes.quantize_transform_pass(bert_graph, rules)
    if is_trained:
        mg.model.train()(**bert_inputs)
    mg.model.eval()
    if by_graph:
        mg, _ = passes.pack_transform_pass(mg, {"silent": True, "exact": True})
        mg.save_pretrained(tmp_path)
    else:
        mg.to_module().save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    layer = again.get_submodule("classifier")
    assert layer.spec.data_in == mg.modules["classifier"].operand_format("data_in")
    assert layer.spec.data_in.is_fitted == is_trained
    inputs = {**bert_inputs, "input_ids": bert_inputs["input_ids"].flip(-1)}
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, mg.model(**inputs)["logits"])
