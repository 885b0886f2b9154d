"""Adapters on packed layers: gradients of the decoded model, and no float copy of its weights."""

import copy
import warnings
from functools import cache

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.base.notices import AdjustedWarning
from chop.models import load_model
from chop.nn.packed import PackedLinear

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
IDS = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 256, "intermediate_size": 320, "vocab_size": 300, "num_hidden_layers": 1}
FORMATS = {
    "nf4": {"name": "nf4"},
    "nested": {"name": "nf4", "nested": True},
    "k_quant": {"name": "k_quant", "width": 4},
    "mxint": {"name": "mxint", "width": 4},
}


@cache
def packed(weight, exact=False):
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**SIZES, **heads, tie_word_embeddings=False)
    mg = MaseGraph(transformers.LlamaForCausalLM(config).eval())
    rule = {"by": "type", "linear": {"config": {"weight": FORMATS[weight]}}}
    mg, _ = passes.quantize_transform_pass(mg, rule)
    mg, _ = passes.pack_transform_pass(mg, {"silent": True, "exact": exact})
    return mg


def decoded(model):
    """The model with the float weights that the codes stand for."""
    for path, layer in list(model.named_modules()):
        if isinstance(layer, PackedLinear):
            twin = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            twin.weight.data = layer.weight.detach().clone()
            home, _, name = path.rpartition(".")
            setattr(model.get_submodule(home), name, twin)
    return model


def adapted(model):
    torch.manual_seed(1)
    lora = peft.LoraConfig(
        r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    return peft.get_peft_model(model, lora).train()


def gradients(model, autocast=False):
    """Gradients of an adapter by name, and the shapes of large matrices that autograd kept."""
    shapes = []

    def note(x):
        shapes.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
    named = {name: x.grad for name, x in model.named_parameters() if x.requires_grad}
    weights = [x for x in shapes if len(x) == 2 and min(x) >= 128]
    return named, weights


HOW = {
    "float32": ("nf4", "nested", "k_quant"),
    "bfloat16": ("nested", "mxint"),
    "autocast": ("nf4", "k_quant"),
    "exact": ("mxint",),
    "checkpointing": ("nested",),
}


@pytest.mark.long
@pytest.mark.parametrize(("how", "weight"), [(how, x) for how, many in HOW.items() for x in many])
def test_gradients_are_those_of_the_decoded_model_without_its_weights(how, weight):
    model = copy.deepcopy(packed(weight, exact=how == "exact").to_module())
    model = model.bfloat16() if how == "bfloat16" else model
    plain, own = adapted(decoded(copy.deepcopy(model))), adapted(model)
    if how == "checkpointing":
        for each in (plain, own):
            each.gradient_checkpointing_enable()
            each.enable_input_require_grads()
    expected, kept = gradients(plain, how == "autocast")
    found, kept_by_own = gradients(own, how == "autocast")
    assert found.keys() == expected.keys() and len(found) == 14
    for name, x in found.items():
        if how in ("autocast", "exact"):
            assert torch.equal(x, expected[name]), name
        else:
            within = 0.05 if how == "bfloat16" else 1e-4
            assert (x - expected[name]).norm() <= within * expected[name].norm(), name
    assert kept_by_own == []
    assert kept or how == "checkpointing"
    assert all(x.grad is None for x in own.parameters() if not x.requires_grad)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weight", ["nested", "k_quant"])
def test_adapters_are_saved_loaded_and_merged_into_codes(weight, tmp_path):
    mg = packed(weight)
    model = adapted(copy.deepcopy(mg.to_module()))
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-2)
    codes = {name: x.clone() for name, x in model.named_buffers() if name.endswith("codes")}
    losses = []
    for _ in range(4):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
    assert all(torch.equal(x, codes[name]) for name, x in model.named_buffers() if name in codes)
    wanted = model.eval()(input_ids=IDS).logits
    model.save_pretrained(tmp_path / "adapter")
    mg.save_pretrained(tmp_path / "base")
    base = load_model(tmp_path / "base")
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(again(input_ids=IDS).logits, wanted)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        merged = again.merge_and_unload()
    warned = [x for x in notes if issubclass(x.category, AdjustedWarning)]
    assert warned and "round" in str(warned[0].message)
    layers = [x for x in merged.modules() if isinstance(x, PackedLinear)]
    assert len(layers) == 8
    stored = merged(input_ids=IDS).logits
    assert (stored - wanted).norm() < 0.3 * wanted.norm()
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(load_model(tmp_path / "merged")(input_ids=IDS).logits, stored)
