"""Layers that engines join: notes of folders whose joined layers differ."""

import pytest

from chop.export.compressed_tensors import target
from chop.export.joined_layers import joined_layers, note_on_joined
from tests.export.decoders import captured, quantized

pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folders")

FOUR, EIGHT = "group_integer:width=4", "group_integer:width=8"
LAYER = r"model\.layers\.0\."
RECIPES = {
    "q wider": (
        {LAYER + ".*q_proj": EIGHT, LAYER + ".*(k|v)_proj": FOUR},
        "model.layers.0.self_attn",
    ),
    "v float": ({LAYER + ".*(q|k)_proj": FOUR}, "model.layers.0.self_attn"),
    "up wider": ({LAYER + ".*gate_proj": FOUR, LAYER + ".*up_proj": EIGHT}, "model.layers.0.mlp"),
    "groups": (
        {LAYER + ".*gate_proj": FOUR, LAYER + ".*up_proj": "group_integer:width=4:group_size=16"},
        "model.layers.0.mlp",
    ),
    "o wider": ({LAYER + ".*(q|k|v)_proj": FOUR, LAYER + ".*o_proj": EIGHT}, None),
    "mlp float": ({LAYER + ".*(q|k|v)_proj": FOUR}, None),
    "one": ({".*_proj": FOUR}, None),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("recipe", "where"), RECIPES.values(), ids=RECIPES)
def test_a_note_names_joined_layers_of_different_formats(recipe, where, tmp_path):
    mg = quantized(captured("Llama"), recipe, by="regex_name")
    notes = [note for note in target.write(mg, tmp_path)["notes"] if "vLLM and SGLang fuse" in note]
    assert len(notes) == (where is not None)
    assert all(where in note for note in notes)


def test_groups_are_siblings_of_one_module():
    paths = ["a.q_proj", "b.k_proj", "a.v_proj", "a.gate_proj", "b.up_proj", "lm_head", "b.w1"]
    assert joined_layers(paths) == [("a.q_proj", "a.v_proj")]
    assert joined_layers(["gate_proj", "up_proj"]) == [("gate_proj", "up_proj")]
    (note,) = note_on_joined({"x.key": 1, "x.query": 2, "y.w1": 1}, ["y.w3", "x.dense"])
    assert "key, query of x and those of 1 more modules" in note
