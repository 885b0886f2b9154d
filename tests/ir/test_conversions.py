"""Tensors of files in transformers: their names, and matrices of experts joined to one."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers import conversion_mapping
from transformers.core_model_loading import Concatenate

import chop
from chop.ir.huggingface.conversions import Conversions, ExpertMatrix, names_in
from tests.experts import MIXTURES, TEXT


def empty(name):
    config = getattr(transformers, f"{name}Config")(**{**TEXT, **MIXTURES[name]})
    with torch.device("meta"):
        return getattr(transformers, f"{name}ForCausalLM")(config)


@pytest.mark.parametrize(
    ("kind", "owner", "names"),
    [
        ("Mixtral", "block_sparse_moe", ("w1", "w3", "w2")),
        ("Qwen2Moe", "mlp", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_matrices_of_an_expert_have_a_place(kind, owner, names):
    found, there = Conversions(empty(kind)), "model.layers.0.mlp.experts"
    of = [f"model.layers.0.{owner}.experts.3.{name}.weight" for name in names]
    assert [found.expert_matrix(name) for name in of] == [
        ExpertMatrix(f"{there}.gate_up_proj", 3, 0, 2),
        ExpertMatrix(f"{there}.gate_up_proj", 3, 1, 2),
        ExpertMatrix(f"{there}.down_proj", 3, 0, 1),
    ]
    assert all(found.is_converted(name) for name in of)
    layer = "model.layers.0.self_attn.q_proj.weight"
    assert found.expert_matrix(layer) is None
    assert not found.is_converted(layer)


def test_matrices_that_are_joined_otherwise_have_none(monkeypatch):
    usual = conversion_mapping.get_model_conversion_mapping

    def turned(model):
        entries = usual(model)
        for entry in entries:
            for step in getattr(entry, "operations", ()):
                step.dim = 2 if isinstance(step, Concatenate) else step.dim
        return entries

    monkeypatch.setattr(conversion_mapping, "get_model_conversion_mapping", turned)
    found = Conversions(empty("Qwen2Moe"))
    assert found.expert_matrix("model.layers.0.mlp.experts.0.up_proj.weight") is None
    assert found.expert_matrix("model.layers.0.mlp.experts.0.down_proj.weight") is not None


def test_names_of_the_body_are_those_of_the_whole_model():
    model = empty("Mixtral")
    stored = "layers.0.block_sparse_moe.gate.weight"
    expected = {stored: "model.layers.0.mlp.gate.weight"}
    assert names_in(model, [stored]) == expected
    assert names_in(model.model, [f"model.{stored}"]) == {
        f"model.{stored}": "layers.0.mlp.gate.weight"
    }


def test_how_transformers_reads_files_is_private_api_of_one_file():
    source = Path(chop.__file__).parent
    places = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "conversion_mapping import" in path.read_text()
        or "core_model_loading import" in path.read_text()
    }
    # The quantizer's operation is a subclass of one of transformers.
    assert places == {"private/transformers_api.py", "ir/huggingface/quantizer.py"}
