"""Layouts in which nodes compute without sending, by hand."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.distributed.planning.node_layouts import NodeLayout, product_layout
from chop.nn.quantized import QuantizedOperator
from tests.distributed.planning.calls import calls, rows, texts

X = {"input": torch.ones(4, 6, 8)}
WIDE = {"input": torch.ones(4, 6, 32)}
HEADS = {name: torch.ones(4, 6, 8, 10) for name in ("query", "key", "value")}
INTEGER = {"name": "integer", "width": 8, "frac_width": 4}
CHANNEL = {
    "data_in": INTEGER,
    "weight": {"name": "scale_integer", "width": 8, "granularity": "channel"},
    "bias": INTEGER,
}
LINEAR = {
    "R | R R -> R",
    "R | S0 S0 -> S2",  # outputs
    "S2 | S1 R -> P",  # inputs
    "S0 | R R -> S0",
    "S1 | R R -> S1",
}


class Attention(nn.Module):
    def forward(self, query, key, value, mask=None):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Masked(Attention):
    def forward(self, query, key, value, mask):
        return super().forward(query, key, value, mask)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 6)

    def forward(self, ids):
        return self.table(ids)


def layouts(net: nn.Module, inputs: dict[str, Any], processes: int, node: str) -> set[str]:
    return texts(rows(MaseGraph(net, dummy_in=inputs), inputs, processes, node))


def test_a_linear_layer_is_cut_by_samples_outputs_and_inputs():
    net = nn.Sequential(nn.Linear(8, 12))
    assert layouts(net, X, 2, "_0") == LINEAR
    assert layouts(net, X, 4, "_0") == LINEAR - {"S1 | R R -> S1"}  # six do not divide by four
    assert layouts(net, X, 5, "_0") == {"R | R R -> R"}
    without_bias = {"R | R -> R", "R | S0 -> S2", "S2 | S1 -> P", "S0 | R -> S0", "S1 | R -> S1"}
    assert layouts(nn.Sequential(nn.Linear(8, 12, bias=False)), X, 2, "_0") == without_bias


def test_layer_norm_and_elementwise_nodes_by_hand():
    net = nn.Sequential(nn.LayerNorm(8), nn.GELU())
    assert layouts(net, X, 2, "_0") == {"R | R R -> R", "S0 | R R -> S0", "S1 | R R -> S1"}
    assert layouts(net, X, 2, "_1") == {f"{x} |  -> {x}" for x in ("R", "S0", "S1", "S2")}


def test_an_embedding_is_cut_by_its_features_or_by_samples():
    found = layouts(Table(), {"ids": torch.ones(4, 8, dtype=torch.long)}, 2, "table")
    assert found == {"R | R -> R", "R | S1 -> S2", "S0 | R -> S0", "S1 | R -> S1"}


@pytest.mark.long
def test_attention_is_cut_by_heads_and_by_samples():
    name = "scaled_dot_product_attention"
    alone = {"R R R |  -> R", "S0 S0 S0 |  -> S0", "S1 S1 S1 |  -> S1"}
    assert layouts(Attention(), HEADS, 2, name) == alone
    assert layouts(Attention(), HEADS, 4, name) == alone - {"S1 S1 S1 |  -> S1"}  # six heads


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("shape", "by_samples", "by_heads"),
    [((4, 1, 8, 8), "S0", "R"), ((4, 6, 8, 8), "S0", "S1"), ((8, 8), "R", "R")],
)
def test_a_mask_is_cut_along_where_it_has_heads_or_samples(
    shape: tuple[int, ...], by_samples: str, by_heads: str
):
    inputs = {**HEADS, "mask": torch.ones(shape)}
    assert layouts(Masked(), inputs, 2, "scaled_dot_product_attention") == {
        "R R R R |  -> R",
        f"S0 S0 S0 {by_samples} |  -> S0",
        f"S1 S1 S1 {by_heads} |  -> S1",
    }


def quantized(number_format: dict[str, Any], packed: bool = False) -> MaseGraph:
    mg = MaseGraph(nn.Sequential(nn.Linear(32, 16)), dummy_in=WIDE)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"by": "type", "default": {"config": number_format}}
        mg, _ = passes.quantize_transform_pass(mg, settings)
        if packed:
            mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    return mg


def blocks(size: int) -> dict[str, Any]:
    return {"name": "mxint", "width": 8, "block_size": size}


BLOCKS_OF_BIAS = LINEAR - {"R | S0 S0 -> S2"} | {"R | S0 R -> S2"}
"""Chunks of the bias are no whole blocks."""
SAMPLES = "S1 | R R -> S1"
CASES = {
    "integer": (INTEGER, 2, LINEAR),
    "blocks": (blocks(8), 2, LINEAR),
    "blocks, a part of one in the bias": (blocks(8), 4, BLOCKS_OF_BIAS - {SAMPLES}),
    "large blocks": (blocks(16), 2, BLOCKS_OF_BIAS),
    "large blocks, a part of one": (blocks(16), 4, BLOCKS_OF_BIAS - {SAMPLES, "S2 | S1 R -> P"}),
    # Each process rounds whole rows of the weight, and multiplies by its columns.
    "channels": (CHANNEL, 2, LINEAR - {"S2 | S1 R -> P"} | {"S2 | R R -> P"}),
    "scale of the whole tensor": ({"name": "nvfp4"}, 2, {"R | R R -> R"}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_number_formats_are_cut_at_their_groups(name: str):
    number_format, processes, expected = CASES[name]
    assert texts(rows(quantized(number_format), WIDE, processes, "_0")) == expected


def test_given_scales_of_channels_are_cut_with_the_rows():
    mg = quantized(CHANNEL)
    mg.model(**WIDE)
    for node in list(mg.nodes):
        module = mg.get_module(node)
        if isinstance(module, QuantizedOperator):
            mg.replace(node, module.freeze_scales())
    found = texts(rows(mg, WIDE, 2, "_0"))
    assert found == LINEAR - {"S2 | S1 R -> P"} | {"S2 | R R -> P"}


@pytest.mark.long
def test_packed_codes_are_cut_by_rows_with_their_scales():
    found = texts(rows(quantized(blocks(8), packed=True), WIDE, 2, "_0"))
    assert {x for x in found if " R |" not in x and "-> S2" in x} == {"R | S0 S0 R R -> S2"}
    assert not any("S1 " in x.split("|")[1] for x in found)


def nets() -> dict[str, tuple[nn.Module, dict[str, torch.Tensor], str]]:
    inputs = {**HEADS, "mask": torch.ones(4, 1, 8, 8)}
    return {
        "linear": (nn.Sequential(nn.Linear(8, 12)), X, "_0"),
        "norm": (nn.Sequential(nn.LayerNorm(8)), X, "_0"),
        "table": (Table(), {"ids": torch.ones(4, 8, dtype=torch.long)}, "table"),
        "attention": (Masked(), inputs, "scaled_dot_product_attention"),
    }


@pytest.mark.parametrize(
    ("name", "count", "failing"),
    [("linear", 24, 8), ("norm", 8, 0), ("table", 15, 0), ("attention", 8, 0)],
)
@pytest.mark.long
def test_layouts_on_two_axes_are_products_of_those_along_each(name: str, count: int, failing: int):
    """Where sizes do not divide by four there is no product.

    A linear layer flattens samples and tokens, which DTensor refuses where one of several axes cuts
    the tokens: eight products read such a layout.
    """
    net, inputs, node = nets()[name]
    mg = MaseGraph(net, dummy_in=inputs)
    found = products(mg, inputs, node)
    with calls(mg, inputs, (2, 2)) as (by_name, finder):
        call = by_name[node]
        held = [layout for layout in found if finder.holds(call, layout)]
        for layout in held:
            direct = finder._computed(call, layout.reads, layout.tensors)
            assert direct is not None and direct.result == layout.result
            assert direct.result_bytes == layout.result_bytes
            assert direct.workspace_bytes <= layout.workspace_bytes
            wrong = NodeLayout(layout.reads, layout.tensors, layout.result[::-1])
            assert finder.holds(call, wrong) == (layout.result == wrong.result)
    assert (len(found), len(found) - len(held)) == (count, failing)
    assert all("S1" in layout.reads[0] for layout in found if layout not in held)


def products(mg: MaseGraph, inputs: dict[str, Any], node: str) -> list[NodeLayout]:
    with calls(mg, inputs, (2,)) as (by_name, finder):
        along = finder.layouts(by_name[node])
        pairs = itertools.product(along, along)
        found = [product_layout(by_name[node], along[0], pair, (2, 2)) for pair in pairs]
    return [layout for layout in found if layout is not None]
