"""The picture of a design, and the one that the guide shows."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
drawing = runpy.run_path(str(ROOT / "docs/draw_dataflow.py"))


def labels(svg):
    """Texts of boxes; fractions and widths follow the weights."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    return [re.sub(r"\d+", "N", text) for text in texts]


def test_the_picture_of_the_guide_is_that_of_an_attention():
    drawn = labels(drawing["picture"]())
    assert drawn == labels(drawing["PICTURE"].read_text()), "run python docs/draw_dataflow.py"
    modules = [text for text in drawn if text.startswith("chop_")]
    assert modules.count("chop_linear") == 4 and modules.count("chop_matmul") == 2
    assert "chop_softmax" in modules and drawn.count("FIFO") >= 4
    assert {"input N", "output N", "matrix product N", "activation N"} <= set(drawn)
