"""Forward hooks: ONNX files run them, integer graphs refuse them by name."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from chop import MaseGraph, passes
from chop.errors import ConfigError

EIGHT = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act, self.pool = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.flat, self.fc = nn.Flatten(), nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(self.flat(self.pool(self.act(self.conv(x)))))


def doubles(module, args, output):
    return output * 2


def shifts(module, args):
    return (args[0] + 0.5,)


def scales(module, args, kwargs):
    return (args[0] * 1.5,), kwargs


def lowers(module, args, kwargs, output):
    return output - 0.25


HOOKS = {
    "doubles": ("fc", lambda layer: layer.register_forward_hook(doubles)),
    "shifts": ("fc", lambda layer: layer.register_forward_pre_hook(shifts)),
    "scales": ("conv", lambda layer: layer.register_forward_pre_hook(scales, with_kwargs=True)),
    "lowers": ("conv", lambda layer: layer.register_forward_hook(lowers, with_kwargs=True)),
    "of an activation": ("act", lambda layer: layer.register_forward_pre_hook(shifts)),
    "of a layout": ("flat", lambda layer: layer.register_forward_hook(doubles)),
}


def quantized(hook, path, after):
    torch.manual_seed(0)
    x, net = torch.randn(2, 2, 6, 6), Net().eval()
    if not after:
        hook(net.get_submodule(path))
    mg, _ = passes.quantize_transform_pass(MaseGraph(net, dummy_in={"x": x}), EIGHT)
    if after:
        hook(mg.model.get_submodule(path))
    return mg, x


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.sampled(3)
def test_a_hook_is_refused_by_name(name, after):
    path, hook = HOOKS[name]
    mg, x = quantized(hook, path, after)
    with pytest.raises(
        ConfigError, match=rf"module '{path}' has the forward hook '\w+' at .*py:\d"
    ):
        passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})


def test_an_onnx_file_runs_them(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    mg, x = quantized(lambda layer: None, "fc", after=True)
    for path, hook in HOOKS.values():
        hook(mg.model.get_submodule(path))
    _, info = passes.export_onnx_interface_pass(mg, {"path": tmp_path / "net.onnx"})
    assert {"conv", "fc"} <= {*info["quantized"]}
    (found,) = runtime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), mg.model(x).detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "register",
    [
        lambda model: model.register_forward_hook(doubles),
        lambda model: register_module_forward_hook(lambda module, args, output: None),
        lambda model: register_module_forward_pre_hook(lambda module, args: None),
    ],
)
def test_hooks_on_the_model_and_on_all_modules_are_refused(register, tmp_path):
    mg, x = quantized(lambda layer: None, "fc", after=True)
    handle = register(mg.model)
    try:
        with pytest.raises(ConfigError, match="the model has the forward hook .* integer graph"):
            passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})
        with pytest.raises(
            ConfigError, match="the model has the forward hook .* the file does not"
        ):
            passes.export_onnx_interface_pass(mg, {"path": tmp_path / "net.onnx"})
    finally:
        handle.remove()


def test_a_batch_norm_stays_beside_a_hooked_convolution():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).eval()
    net[0].register_forward_hook(doubles)
    x = torch.randn(2, 2, 6, 6)
    mg, info = passes.conv_bn_fusion_transform_pass(MaseGraph(net, dummy_in={"input": x}))
    assert len(mg.nodes) == 4 and "the convolution has hooks" in str(info)
    torch.testing.assert_close(mg.model(x), net(x))
