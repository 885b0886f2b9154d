"""What training has shown of formats that were not calibrated stays with the graph."""

import copy
import pickle

import pytest
import torch

from chop import MaseGraph, passes


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
    assert layer.spec.data_in.is_fitted and layer.format_of("data_in") is layer.spec.data_in
    assert layer.spec.data_in.is_fitted and not layer.running
    assert layer.state_dict().keys() == {"weight", "bias"}
