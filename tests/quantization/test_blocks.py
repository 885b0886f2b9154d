"""A walk block by block gives the codes that the whole graph gives."""

import pytest
import torch

from chop import MaseGraph, passes
from chop.ir.batches import select_inputs
from chop.models.meta import meta_model, weights_source
from chop.quantization.block_files import BlockFiles
from chop.quantization.block_gptq import BlockGptq
from chop.quantization.block_weights import LazyWeights
from chop.quantization.blocks import BlockWalk, block_paths
from chop.quantization.gptq import Solver

MASKED = torch.ones(3, 12, dtype=torch.long)
MASKED[1, :5] = 0


def decoder(kind, tied=False):
    import transformers as t

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 100, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    if kind == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**sizes, **heads))
    if kind == "qwen2":
        return t.Qwen2ForCausalLM(t.Qwen2Config(**sizes, **heads))
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}
    return t.GPT2LMHeadModel(t.GPT2Config(**small, bos_token_id=0, eos_token_id=0))


def texts(count=2):
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, 100, (3, 12), generator=generator), "attention_mask": mask}
        for mask in (MASKED, torch.ones_like(MASKED))[:count]
    ]


def rules(*operators, **own):
    config = {"config": {"weight": {"name": "mxint", "width": 4}}}
    return {"by": "type", **dict.fromkeys(operators, config), **own}


def as_graph(model, rule):
    mg = MaseGraph(model, hf_input_names=[*texts()[0]])
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return passes.quantize_transform_pass(mg, rule, inplace=True)[0]


def walked(folder, out, rule, row_weights="gradient", batches=None, stage=None, settings=None):
    import contextlib

    model = meta_model(folder, dtype=torch.float32)
    blocks = block_paths(model)
    mg = as_graph(model, rule)
    source = weights_source(model, folder, mg.model)
    shapes = {name: tuple(x.shape) for name, x in mg.model.named_parameters(remove_duplicate=False)}

    def read(name):
        return source.read(name, tuple(slice(0, size) for size in shapes[name]))

    weights = LazyWeights(mg.model, read)
    batches = list(select_inputs(mg, batches or texts(), "test"))
    files = BlockFiles(out, settings or {"rule": str(rule)})
    walk = BlockWalk(mg, blocks, weights, batches, files)
    rounder = BlockGptq(walk, Solver(actorder=True), row_weights == "gradient")
    told = walk.run(rounder, stage or (lambda _: contextlib.nullcontext()))
    weights.load_rest()
    return mg, {path: errors for part in told for path, errors in part.items()}


def in_memory(model, rule, row_weights="gradient"):
    mg = as_graph(model.eval(), rule)
    settings = {"batches": texts(), "row_weights": row_weights}
    mg, info = passes.gptq_transform_pass(mg, settings, inplace=True)
    return passes.pack_transform_pass(mg, {"silent": True})[0], info["layers"]


@pytest.mark.parametrize("row_weights", ["gradient", "uniform"])
@pytest.mark.parametrize("kind, tied", [("llama", False), ("qwen2", True), ("gpt2", True)])
def test_codes_are_those_of_the_whole_graph(tmp_path, kind, tied, row_weights):
    rule = rules("linear", "embedding")
    model = decoder(kind, tied)
    model.save_pretrained(tmp_path / "float")
    expected, layers = in_memory(model, rule, row_weights)
    found, told = walked(tmp_path / "float", tmp_path / "walk", rule, row_weights)
    state = expected.model.state_dict()
    assert found.model.state_dict().keys() == state.keys()
    for name, x in found.model.state_dict().items():
        assert torch.equal(x, state[name]), name
    assert told == layers
    codes = [name for name in state if name.endswith("weight_codes")]
    assert len(codes) >= 10
