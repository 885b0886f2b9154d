"""Recipes made of the formats that layers have: reading them gives those formats again."""

import random

import pytest

from chop.formats.recipe_of_layers import recipe_of_layers

NAMES = ("self_attn.q_proj", "mlp.up_proj", "mlp.experts.0.up", "mlp.experts.11.up", "q_proj")
ODD = ["model.embed_tokens", "lm_head", "x.lm_head", "0", "1.x", "head.0"]


def read(formats):
    usual, recipe = recipe_of_layers(formats)
    skipped = recipe.skipped_paths(formats, AssertionError)
    layers = {path: [path] for path in formats if path not in skipped}
    return dict.fromkeys(skipped) | dict.fromkeys(layers, usual) | recipe.choose(layers, "")


@pytest.mark.parametrize("seed", range(20))
def test_any_formats_come_back(seed):
    draw = random.Random(seed)
    count = draw.choice([1, 2, 12])
    paths = ODD + [f"model.layers.{i}.{name}" for i in range(count) for name in NAMES]
    texts = draw.sample(["mxint:width=4", "mxint", "4.mse", None], draw.choice([2, 3]))
    formats = {path: draw.choice(texts) for path in paths}
    assert read(formats) == formats


def test_layers_that_share_a_format_are_one_pattern():
    names = ("q_proj", "down_proj")
    formats = {f"model.layers.{i}.{n}": "mxint4" for i in range(12) for n in names}
    formats |= {f"model.layers.{i}.down_proj": "mxint8" for i in (0, 2, 10)}
    usual, recipe = recipe_of_layers({**formats, "lm_head": None})
    assert usual == "mxint4" and recipe.skip == ("lm_head",)
    assert recipe.overrides == {r"re:model\.layers\.(0|2|10)\.down_proj$": "mxint8"}
    whole = dict.fromkeys((path for path in formats if path.endswith("down_proj")), "mxint8")
    assert recipe_of_layers(formats | whole)[1].overrides == {"down_proj": "mxint8"}
    assert recipe_of_layers({"": "4.mse"}) == ("4.mse", recipe_of_layers({"x": "4.mse"})[1])
