"""Models in the wrappers of torch, and models that torch has compiled or exported."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import chop
from chop import MaseGraph, passes
from chop.capture.tracer import capture
from chop.captured.wrappers import unwrapped
from chop.errors import CaptureError, ConfigError


class Holder(nn.Module):
    """A layer and another module after it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


def _compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


WRAPPERS = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "compile in place": _compiled_in_place,
    "parallel": nn.DataParallel,
    "compiled parallel": lambda model: torch.compile(nn.DataParallel(model)),
}


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.sampled(1)
def test_the_model_inside_a_wrapper_is_captured(wrap: str) -> None:
    model, x = Holder(nn.Linear(4, 2)).eval(), torch.randn(3, 4)
    keys, expected = list(model.state_dict()), model(x)
    wrapped = WRAPPERS[wrap](model)
    assert unwrapped(wrapped) is model
    for mg in (MaseGraph(wrapped, dummy_in={"x": x}), MaseGraph(wrapped)):
        assert torch.equal(mg.model(x), expected)
        assert list(mg.model.state_dict()) == keys
        assert mg.model.class_name == "Holder"


EXPORTS = {
    "exported": lambda program: program.module(),
    "decomposed": lambda program: program.run_decompositions({}).module(),
    "unflattened": torch.export.unflatten,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
@pytest.mark.parametrize("way", EXPORTS)
def test_what_torch_has_exported_is_refused_at_any_place(way: str) -> None:
    x = torch.randn(2, 4)
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4)), (x,))
    module = EXPORTS[way](program)
    with pytest.raises(CaptureError, match="got one of torch.export.*pass the original module"):
        capture(module, {"input": x})
    with pytest.raises(CaptureError, match="got inner of torch.export"):
        capture(Holder(module), {"x": x})
    with pytest.raises(ConfigError, match="got ExportedProgram; pass the original module"):
        MaseGraph(program)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's own
def test_layers_that_torch_ao_quantized_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    for take in (MaseGraph, chop.quantize):
        with pytest.raises(CaptureError, match=r"got 0 of torch\.ao\.quantization \(Linear\)"):
            take(small)


@pytest.mark.filterwarnings("ignore::chop.ir.unreached.UnreachedWarning")
@pytest.mark.parametrize("compiled", ["trace", "freeze"])
def test_compiled_by_torchscript_a_model_is_refused_and_a_layer_is_a_node(compiled: str) -> None:
    x = torch.randn(2, 4)
    inner = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), x)
    inner = torch.jit.freeze(inner) if compiled == "freeze" else inner
    with pytest.raises(CaptureError, match="compiled by TorchScript; pass the module"):
        MaseGraph(inner)
    model = Holder(inner).eval()
    with pytest.warns(UserWarning, match="it is compiled by TorchScript"):
        mg = MaseGraph(model, dummy_in={"x": x})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": x}})
    config = {"config": {"name": "integer", "width": 8, "frac_width": 4}}
    small, info = passes.quantize_transform_pass(mg, {"by": "type", "linear": config})
    assert info["quantized"] == 1
    assert torch.equal(small.model(x), inner(small.get_module(small.nodes[1])(x)))


@pytest.mark.long
def test_functions_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="got function; pass the module that it belongs to"):
        MaseGraph(torch.compile(nn.Linear(4, 4).forward))
