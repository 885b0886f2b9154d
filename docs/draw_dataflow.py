"""Draws the dataflow of the circuit that the guide shows: an attention of the built-in ViT."""

from __future__ import annotations

from pathlib import Path

import torch

from chop import MaseGraph, passes
from chop.base.files import write_text
from chop.hardware.design.dataflow import dataflow_svg
from chop.hardware.design.emit import emit
from chop.models import load_model

PICTURE = Path(__file__).resolve().parent / "images/dataflow.svg"
TOKENS, FEATURES, FOLD = 17, 48, 7000


def picture() -> str:
    """SVG: weights are random, so that fractions of formats differ from those of a trained one."""
    attention = load_model("vit", seed=0).vit.layers[0].attention
    generator = torch.Generator().manual_seed(0)
    batch = {"hidden_states": torch.randn(4, TOKENS, FEATURES, generator=generator)}
    mg = MaseGraph(attention, dummy_in=batch)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    integer = {"config": {"name": "integer", "width": 8, "frac_width": "auto"}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": integer})
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": [batch]})
    mg, _ = passes.lower_to_integer_transform_pass(mg, {"batches": [batch]})
    return dataflow_svg(emit(mg, FOLD))


if __name__ == "__main__":
    write_text(PICTURE, picture())
