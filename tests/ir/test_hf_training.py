"""Folders of models that are in quantized training, as checkpoints of a Trainer are."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from chop import MaseGraph, passes
from chop.errors import CheckpointError
from tests.ir.decoders import TINY, llama

INTEGER = {"name": "scale_integer", "width": 4}
CHANNELS = {**INTEGER, "granularity": "channel"}
CLIPPED = {"name": "integer", "width": 4, "frac_width": 3}
RULES = {
    "scales": {"data_in": INTEGER, "weight": CHANNELS, "gradient": "lsq"},
    "weights": {"weight": {"name": "binary", "scaling_factor": True}, "gradient": "lsq"},
    "clipped": {"data_in": CLIPPED, "weight": CLIPPED, "gradient": "clip"},
}
IDS = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(0))


def made(rule, is_tied=False):
    mg = MaseGraph(llama(**TINY, tie_word_embeddings=is_tied).train())
    config = {"by": "type", "linear": {"config": RULES[rule]}}
    return passes.quantize_transform_pass(mg, config)[0].to_module()


def train(model, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model.train()(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=IDS).logits


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("rule", "is_tied"),
    [("scales", False), ("scales", True), ("weights", False), ("clipped", True)],
)
@pytest.mark.sampled(1)
def test_a_folder_trains_on_as_its_model(rule, is_tied, steps, tmp_path):
    model = train(made(rule, is_tied), steps)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(model))
    torch.testing.assert_close(logits(train(again)), logits(train(model)))
    scales = {name for name, _ in model.named_parameters() if name.endswith("_scale")}
    assert scales == {name for name, _ in again.named_parameters() if name.endswith("_scale")}
    assert bool(scales) == (rule != "clipped")


@pytest.mark.long
def test_a_folder_without_a_scale_is_an_error(tmp_path):
    train(made("scales")).save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj.weight_scale"
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"lack '{name}'"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.long
def test_a_copy_is_saved_in_another_dtype(tmp_path):
    model = copy.deepcopy(train(made("scales"))).bfloat16()
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))
