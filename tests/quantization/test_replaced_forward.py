"""Layers whose forward was replaced on the instance: traced into, or refused by name."""

import copy
import functools
import types

import pytest
import torch
import torch.nn.functional as F
from accelerate import cpu_offload, dispatch_model
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import nn

from chop import ChopConfig, MaseGraph, passes
from chop.captured.record import CaptureWarning
from chop.errors import ChopError, ConfigError, GraphError, GuardError
from chop.ir.parameters import stored_parameters
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from chop.passes.module.quantize_module import quantize_module_transform_pass

COARSE = {"by": "type", "linear": {"config": {"name": "integer", "width": 4, "frac_width": 2}}}
WIDE = {"config": {"name": "integer", "width": 32, "frac_width": 20}}
WIDE_ALL = {"by": "type", "default": WIDE}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act, self.out = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.act(self.fc(x)))


class Doubles(ModelHook):
    def post_forward(self, module, output):
        return output * 2


def by_closure(fc):
    before = fc.forward
    fc.forward = lambda x: before(x) * 2


def by_method(fc):
    fc.forward = types.MethodType(lambda self, x: F.linear(x, self.weight, self.bias) * 2, fc)


def by_partial(fc):
    fc.forward = functools.partial(lambda layer, x: nn.Linear.forward(layer, x) * 2, fc)


def by_accelerate(fc):
    add_hook_to_module(fc, Doubles())


def by_call_impl(fc):
    fc._call_impl = lambda x: nn.Linear.forward(fc, x) * 2


WAYS = [by_closure, by_method, by_partial, by_accelerate, by_call_impl]


def captured(net, x):
    mg = MaseGraph(net, dummy_in={"x": x})
    return passes.add_common_metadata_analysis_pass(mg)[0]


@pytest.mark.parametrize("replace", WAYS)
@pytest.mark.sampled(3)
def test_what_was_put_in_its_place_is_quantized(replace):
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(5, 8)
    plain = copy.deepcopy(net)
    replace(net.fc)
    with pytest.warns(CaptureWarning, match="forward of fc was replaced on the instance"):
        mg = captured(net, x)
    torch.testing.assert_close(mg.model(x), net(x))
    quantized, info = passes.quantize_transform_pass(mg, COARSE)
    assert info == {"quantized": 2}
    twins = [QuantLinear.from_float(copy.deepcopy(m), m_spec) for m, m_spec in specs(plain)]
    expected = twins[1](F.relu(twins[0](x) * 2))
    torch.testing.assert_close(quantized.model(x), expected)
    bits = {stored.name: stored.bits for stored in stored_parameters(quantized)}
    assert bits["fc.weight"] == bits["out.weight"] == 4
    assert quantized.model.state_dict().keys() == plain.state_dict().keys()


def specs(plain):
    spec = QuantLinear(1, 1, config=COARSE["linear"]["config"]).spec
    return (plain.fc, spec), (plain.out, spec)


@pytest.mark.parametrize("replace", WAYS)
def test_without_a_graph_it_is_refused_by_name(replace):
    net = Net()
    replace(net.fc)
    with pytest.raises(
        ConfigError, match=r"module 'fc' cannot be .*(replaced|accelerate's Doubles)"
    ):
        quantize_module_transform_pass(net, COARSE)
    others = {"by": "name", "out": COARSE["linear"]}
    if replace not in (by_closure, by_call_impl):  # a copy of these calls the original
        assert quantize_module_transform_pass(net, others)[1] == {"quantized": 1}


def test_weights_elsewhere_are_refused_and_hooks_that_move_nothing_are_not():
    torch.manual_seed(0)
    x, nets = torch.randn(5, 8), [Net().eval() for _ in range(2)]
    cpu_offload(nets[0], execution_device="cpu")
    dispatch_model(nets[1], dict.fromkeys(("fc", "act", "out"), "cpu"), force_hooks=True)
    with pytest.warns(CaptureWarning):
        offloaded, dispatched = (captured(net, x) for net in nets)
    with pytest.raises(
        ConfigError, match="'fc' cannot be .*AlignDevicesHook.*remove_hook_from_mod"
    ):
        passes.quantize_transform_pass(offloaded, COARSE)
    quantized, _ = passes.quantize_transform_pass(dispatched, COARSE)
    assert (quantized.model(x) - nets[1](x)).abs().max() > 0.01
    twins = [QuantLinear.from_float(copy.deepcopy(m), s) for m, s in specs(dispatched.model)]
    torch.testing.assert_close(quantized.model(x), twins[1](F.relu(twins[0](x))))


def replaced_afterwards(mg):
    fc = mg.model.get_submodule("fc")
    fc.forward = lambda x: F.linear(x, fc.weight) * 5
    return mg


@pytest.mark.parametrize(
    "apply",
    [
        lambda mg: passes.quantize_transform_pass(mg, COARSE),
        lambda mg: passes.insert_lora_adapter_transform_pass(mg, {"rank": 2}),
        lambda mg: passes.fuse_linear_activation_transform_pass(mg),
        lambda mg: passes.quantize_transform_pass(mg, {"by": "name", "fc": COARSE["linear"]}),
    ],
)
@pytest.mark.sampled(3)
def test_passes_refuse_what_was_replaced_after_the_capture(apply):
    mg = replaced_afterwards(captured(Net().eval(), torch.randn(5, 8)))
    with pytest.raises(ChopError, match=r"'fc'.*forward was replaced on the instance by .*lambda"):
        apply(mg)


def test_nothing_takes_a_replaced_forward_over(tmp_path):
    layer = QuantLinear(8, 8, config={"weight": {"name": "mxint"}})
    layer.forward = abs
    with pytest.raises(ConfigError, match="forward was replaced on the instance by 'abs'"):
        pack(layer)
    with pytest.raises(ConfigError, match="cannot convert a QuantLinear to QuantLinear"):
        QuantLinear.from_float(layer, layer.spec)
    mg = replaced_afterwards(captured(Net().eval(), torch.randn(5, 8)))
    with pytest.raises(ChopError, match="module 'fc' cannot be exported"):
        mg.export(tmp_path / "graph")


def test_copies_never_call_the_original():
    x = torch.randn(5, 8)
    net = nn.Sequential(Net()).eval()
    before = net[0].forward
    net[0].forward = lambda x: before(x) * 2
    mg = MaseGraph(net, dummy_in={"input": x})
    torch.testing.assert_close(mg.model(x), net(x))
    with pytest.raises(GraphError, match="module '0' cannot be copied: .*refers to the original"):
        mg.to_module()
    with pytest.raises(ConfigError, match="module '0' cannot be copied"):
        quantize_module_transform_pass(net, COARSE)
    mg.model.forward = lambda input: before(input)
    with pytest.raises(GraphError, match="the graph's model cannot be copied"):
        mg.copy()


def test_a_forward_of_what_the_graph_looked_into_is_refused():
    mg = MaseGraph(nn.Sequential(Net()).eval(), dummy_in={"input": torch.randn(5, 8)})
    mg.model.get_submodule("0").forward = abs
    with pytest.raises(GuardError, match="got one on 0, whose nodes are part of the graph"):
        mg.model(torch.randn(5, 8))


@pytest.mark.parametrize("how", ["layer", "wrapper", "block", "model"])
@pytest.mark.sampled(1)
def test_compiled_modules_are_quantized(how):
    torch.manual_seed(0)
    net, x = nn.Sequential(Net(), nn.Linear(4, 4)).eval(), torch.randn(5, 8)
    plain = captured_sequence(copy.deepcopy(net), x)
    if how == "wrapper":
        net[0] = torch.compile(net[0], backend="eager")
    else:
        {"layer": net[1], "block": net[0], "model": net}[how].compile(backend="eager")
    mg = captured_sequence(net, x)
    quantized, info = passes.quantize_transform_pass(mg, COARSE, inplace=True)
    expected, known = passes.quantize_transform_pass(plain, COARSE)
    assert info == known == {"quantized": 3}
    assert torch.equal(quantized.model(x), expected.model(x))
    if how == "wrapper":
        with pytest.raises(
            ConfigError, match="module '0' cannot be copied: it is a torch.compile wrapper"
        ):
            quantize_module_transform_pass(net, COARSE)
    else:
        twin, _ = quantize_module_transform_pass(net, COARSE)
        assert torch.equal(twin(x), expected.model(x))


def captured_sequence(net, x):
    mg = MaseGraph(net, dummy_in={"input": x})
    return passes.add_common_metadata_analysis_pass(mg)[0]


@pytest.mark.parametrize(("base", "method"), [(nn.Linear, "forward"), (nn.Conv1d, "_conv_forward")])
def test_a_class_that_computes_otherwise_is_another_operator(base, method):
    def tripled(self, *args):
        return getattr(base, method)(self, *args) * 3

    class Tripled(base):
        pass

    setattr(Tripled, method, tripled)
    layer = Tripled(4, 4, *([1] if base is nn.Conv1d else [])).eval()
    x = torch.randn(2, 4, 4)
    net = nn.Sequential(layer, nn.ReLU())
    twin, _ = quantize_module_transform_pass(net, {"by": "type", "relu": WIDE})
    torch.testing.assert_close(twin(x), net(x), atol=1e-4, rtol=1e-4)
    mg, _ = passes.quantize_transform_pass(captured_sequence(net, x), WIDE_ALL)
    torch.testing.assert_close(mg.model(x), net(x), atol=1e-4, rtol=1e-4)


def test_loading_refuses_a_replaced_forward(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    class Scaled(LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.lm_head.forward = types.MethodType(nn.Linear.forward, self.lm_head)

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 16}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="'lm_head' cannot be quantized.*name it in skip"):
        Scaled.from_pretrained(tmp_path, quantization_config=ChopConfig("mxint8"))
    kept = ChopConfig("mxint8", skip=["lm_head"])
    loaded = Scaled.from_pretrained(tmp_path, quantization_config=kept)
    assert type(loaded.lm_head) is nn.Linear
