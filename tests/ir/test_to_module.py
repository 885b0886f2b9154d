"""The original model with the operators of a graph."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import GraphError
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedLinear
from chop.nn.quantized import QuantLinear

MXINT = {"config": {"name": "mxint"}}
IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.drop = 0.5
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.twins = [self.first, self.body]  # what attributes say of modules holds for the copies
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        y = nn.functional.dropout(self.norm(self.first(x)), self.drop, self.training)
        return self.body(y) @ torch.eye(64)

    def double(self, x):
        return 2 * self(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def mg(net):
    return MaseGraph(net, dummy_in={"x": torch.randn(3, 64)})


def decoder(name="Llama", **settings):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, **settings
    )
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def test_the_class_and_its_methods_go_on_and_nothing_else_changes(net, mg):
    before = copy.deepcopy(net.state_dict())
    small, _ = passes.quantize_transform_pass(mg, {"linear": MXINT})
    made = small.to_module()
    x = torch.randn(5, 64)
    assert type(made) is Net and type(made.first) is QuantLinear
    assert made.twins[0] is made.first and made.twins[1] is made.body
    assert torch.equal(made.double(x), 2 * small.model(x))
    assert not torch.equal(made(x), net(x))
    assert type(net.first) is nn.Linear and net.first is mg.modules["first"]
    assert made.first.weight is small.modules["first"].weight
    assert made.state_dict().keys() == before.keys()
    made.train()(x)
    assert not small.model.training and not small.modules["first"].training
    made.eval()
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_packed_pruned_and_adapted_layers_are_in_place(mg):
    mg, _ = passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    x = torch.randn(4, 64)
    pruned = mg.to_module()
    assert (pruned.first.weight == 0).float().mean() > 0.4
    assert torch.equal(pruned(x), mg.model(x))
    adapted, _ = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})
    assert isinstance(adapted.to_module().first, LoraLinear)
    packed, _ = passes.quantize_transform_pass(mg, {"linear": MXINT})
    packed, _ = passes.pack_transform_pass(packed)
    made = packed.to_module()
    assert isinstance(made.body[0], PackedLinear) and made.twins[1][0] is made.body[0]
    assert torch.equal(made(x), packed.model(x))


def test_copies_and_pickles_know_the_class_where_it_can_be_found(mg):
    x = torch.randn(2, 64)
    assert torch.equal(mg.copy().to_module()(x), mg.model(x))
    plain = MaseGraph(nn.Sequential(nn.Linear(64, 4), nn.ReLU()))
    made = pickle.loads(pickle.dumps(plain)).to_module()
    assert type(made) is nn.Sequential and torch.equal(made(x), plain.model(x))

    class Local(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    lost = pickle.loads(pickle.dumps(MaseGraph(nn.Sequential(Local(4, 4)))))
    with pytest.raises(GraphError, match="classes could not be pickled"):
        lost.to_module()


def test_a_checkpoint_takes_the_class_from_a_model(mg, tmp_path):
    small, _ = passes.quantize_transform_pass(mg, {"linear": MXINT})
    small.export(tmp_path / "net")
    again = MaseGraph.from_checkpoint(tmp_path / "net")
    with pytest.raises(GraphError, match=r"a checkpoint has no code.*like=Net"):
        again.to_module()
    with pytest.raises(GraphError, match="like: expected Net, got Linear"):
        again.to_module(like=nn.Linear(1, 1))
    other = Net()
    other.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Sequential(nn.ReLU()))
    with pytest.raises(GraphError, match=r"differ in 'body.2'"):
        again.to_module(like=other)
    x = torch.randn(2, 64)
    assert torch.equal(again.to_module(like=Net())(x), small.model(x))


def test_the_module_of_a_checkpoint_is_in_eval_mode_like_the_given_one(mg, tmp_path):
    mg.model.train()
    mg.export(tmp_path / "net")
    again = MaseGraph.from_checkpoint(tmp_path / "net")
    assert again.to_module(like=Net()).training
    assert not any(module.training for module in again.to_module(like=Net().eval()).modules())
    frozen = Net()
    frozen.norm.eval()
    small = again.to_module(like=frozen)
    assert small.training and small.first.training and not small.norm.training
    assert again.model.training


def test_changes_that_a_forward_would_not_follow_are_refused_by_name(mg):
    function, _ = passes.quantize_transform_pass(mg, {"matmul": MXINT})
    with pytest.raises(
        GraphError, match=r"'matmul' quantizes a function.*Net.*not an attention of"
    ):
        function.to_module()
    fused, _ = passes.conv_bn_fusion_transform_pass(
        MaseGraph(
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval(),
            dummy_in={"input": torch.ones(1, 1, 4, 4)},
        )
    )
    with pytest.raises(GraphError, match=r"lost node '_1'.*conv_bn_fusion_transform_pass"):
        fused.to_module()
    mg.node("matmul").target = torch.mul
    with pytest.raises(GraphError, match="changed the call.*'matmul'"):
        mg.to_module()


@pytest.mark.long
def test_a_size_of_heads_that_the_configuration_computes_stays_computed():
    model, ids = decoder("Falcon", ffn_hidden_size=64), torch.arange(8)[None]
    made = MaseGraph(model, dummy_in={"input_ids": ids}).to_module()
    assert made.config.head_dim == 16 and "head_dim" not in vars(made.config)
    assert torch.equal(made(ids).logits, model(ids).logits)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.long
def test_quantized_attention_goes_through_the_registry(attention, tmp_path):
    model = decoder(num_key_value_heads=2, intermediate_size=64, attn_implementation=attention)
    names = ["scaled_dot_product_attention"] if attention == "sdpa" else ["matmul", "softmax"]
    mg, mask = MaseGraph(model), torch.ones_like(IDS)
    mask[0, :2] = 0
    small, _ = passes.quantize_transform_pass(mg, dict.fromkeys(["linear", *names], MXINT))
    made = small.to_module()
    logits = small.model(IDS, mask).logits
    assert torch.equal(made(IDS, attention_mask=mask).logits, logits)
    only, _ = passes.quantize_transform_pass(mg, {"linear": MXINT})
    assert not torch.equal(only.to_module()(IDS, attention_mask=mask).logits, logits)
    assert (made.config._attn_implementation, model.config._attn_implementation) == (
        f"chop_{attention}",
        attention,
    )
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    tokens = made.generate(IDS, **settings)
    # Without a cache the forward is the graph's at every step.
    assert torch.equal(tokens, made.generate(IDS, use_cache=False, **settings))
    small.export(tmp_path / "small")
    again = MaseGraph.from_checkpoint(tmp_path / "small").to_module()
    assert torch.equal(again(IDS, attention_mask=mask).logits, logits)


@pytest.mark.parametrize("kind", ["opt", pytest.param("gemma", marks=pytest.mark.long)])
def test_weights_that_a_forward_hands_to_a_function_are_rounded(kind, tmp_path):
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "opt":  # its table of positions is a class of its own
        config = transformers.OPTConfig(ffn_dim=32, word_embed_proj_dim=32, **sizes)
    else:  # so is its table, which the head shares
        heads = {"head_dim": 16, "num_key_value_heads": 2}
        config = transformers.GemmaConfig(intermediate_size=32, **heads, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    before = copy.deepcopy(model.state_dict())
    weights = {"config": {"weight": {"name": "mxint", "width": 4}}}
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(model), dict.fromkeys(["linear", "embedding"], weights)
    )
    made = mg.to_module()
    logits = mg.model(IDS, torch.ones_like(IDS)).logits
    assert torch.equal(made(IDS).logits, logits)
    assert made.lm_head.weight is made.get_input_embeddings().weight
    assert all(torch.equal(x, before[name]) for name, x in mg.model.state_dict().items())
    mg.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, logits)


@pytest.mark.long
def test_a_function_in_the_middle_of_a_forward_is_refused():
    model = decoder(intermediate_size=64)
    mg, _ = passes.quantize_transform_pass(MaseGraph(model), {"silu": MXINT})
    with pytest.raises(GraphError, match=r"'silu' quantizes a function.*mlp.act_fn.*attention fu"):
        mg.to_module()


FACTOR = torch.full((64,), 0.5)


class Scaled(nn.Module):
    """Multiplies by a tensor that is no parameter, in one of three ways."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.plain = kind, torch.full((64,), 0.5)
        self.register_buffer("kept", torch.full((64,), 0.5))

    def forward(self, x):
        return x * {"global": FACTOR, "attribute": self.plain, "buffer": self.kept}[self.kind]


@pytest.mark.parametrize("kind", ["global", "attribute", "buffer"])
@pytest.mark.sampled(1)
def test_products_with_constants_are_refused_by_name(kind):
    mg = MaseGraph(Scaled(kind).eval(), dummy_in={"x": torch.randn(3, 64)})
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "mul": MXINT})
    with pytest.raises(GraphError, match="node 'mul' quantizes a function"):
        quantized.to_module()


class Asking(nn.Module):
    """Its forward asks what its layers are."""

    def __init__(self, asks):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.asks = asks

    def forward(self, x):
        y = self.fc(x) + torch.rand_like(x)
        return y.relu() if self.asks(self.fc) else y[:, :2]


CHANGED = {
    "type": lambda layer: type(layer) is nn.Linear,
    "name": lambda layer: type(layer).__name__ == "Linear",
    "attribute": lambda layer: not hasattr(layer, "spec"),
}
KEPT = {
    "isinstance": lambda layer: isinstance(layer, nn.Linear),
    "size": lambda layer: layer.out_features == 4,
}


@pytest.mark.parametrize("asks", [*CHANGED, *KEPT])
def test_a_forward_that_asks_for_the_class_of_a_layer_is_named(asks):
    mg = MaseGraph(Asking({**CHANGED, **KEPT}[asks]), dummy_in={"x": torch.randn(3, 4)})
    rule = {"by": "type", "linear": {"config": {"weight": {"name": "mxint"}}}}
    quantized, _ = passes.quantize_transform_pass(mg, rule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quantized.to_module()
    said = [w for w in caught if "and its graph differ" in str(w.message)]
    assert len(said) == (asks in CHANGED)
