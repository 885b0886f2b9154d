"""What passes say of a graph whose operators have stand-ins where formats were."""

import pytest
import torch

from chop import passes
from chop.errors import CheckpointError, ConfigError
from chop.formats import Integer
from chop.ir.storage.codec import Encoder, NotPlainError
from chop.ir.verify import verify
from tests.stand_ins import Affine, Watch

TO_EIGHT = {"data_in": Integer(8, 4), "weight": Integer(8, 6)}


@pytest.fixture
def watched(net_graph):
    mg, _ = passes.quantize_transform_pass(
        net_graph, {"by": "type", "linear": {"config": TO_EIGHT}}
    )
    layer = mg.modules["fc1"]
    layer.spec = layer.spec.with_quantizers(data_in=Watch())
    return mg


def test_a_copy_of_the_graph_has_observers_of_its_own(watched):
    x, again = torch.randn(2, 1, 6, 7), watched.copy()
    assert torch.equal(again.model(x), watched.model(x))
    watches = [mg.modules["fc1"].spec.data_in for mg in (watched, again)]
    assert watches[0] is not watches[1] and [len(watch.seen) for watch in watches] == [1, 1]


def test_rules_of_a_pass_take_formats_only(net_graph):
    rule = {"config": {"data_out": Affine(2.0)}}
    with pytest.raises(
        ConfigError, match="data_out: expected a number format, got the stand-in Affine"
    ):
        passes.quantize_transform_pass(net_graph, {"by": "name", "fc2": rule})


@pytest.mark.parametrize(
    "use",
    [
        passes.calculate_avg_bits_mg_analysis_pass,
        passes.summarize_quantization_analysis_pass,
        verify,
        lambda mg: passes.export_onnx_interface_pass(mg, {"path": "never.onnx"}),
    ],
    ids=["bits", "summary", "verify", "onnx"],
)
def test_who_counts_or_exports_formats_names_the_operand(watched, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="data_in: expected a number format, got the stand-in Watch"
    ):
        use(watched)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_has_no_stand_ins(watched, tmp_path):
    message = r"'fc1' \(QuantLinear\) cannot be exported: its attribute 'spec' is .*Watch"
    with pytest.raises(CheckpointError, match=message):
        watched.export(tmp_path / "graph")
    assert not list(tmp_path.iterdir())
    with pytest.raises(NotPlainError, match="Affine"):
        Encoder()(watched.modules["fc1"].spec.with_quantizers(data_in=Affine()))


def test_observers_leave_when_their_work_is_done(watched):
    layer, x = watched.modules["fc1"], torch.randn(2, 1, 6, 7)
    layer.spec = layer.spec.with_quantizers(data_in=TO_EIGHT["data_in"])
    verify(watched)
    assert layer.spec.number_format("data_in") == Integer(8, 4)
    assert watched.model(x).isfinite().all()
