"""Packages of AOTInductor: the graph's outputs, by processes that cannot import chop."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import GraphError, VerificationError
from chop.export import pt2
from chop.formats import parse_format_string


class Net(nn.Module):
    """Several inputs, of which one is nested, and several outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x, pair):
        hidden = torch.relu(self.first(x)) * pair["scale"]
        return {"logits": self.last(hidden + pair["shift"]), "hidden": hidden}


def frozen_graph(inputs, weights="mxint"):
    torch.manual_seed(0)
    example = {
        "x": torch.randn(4, 12),
        "pair": {"scale": torch.rand(4, 16), "shift": torch.randn(4, 16)},
    }
    mg = MaseGraph(Net().eval(), dummy_in=example)
    config = {"data_in": inputs and parse_format_string(inputs), "weight": weights, "bias": None}
    config["weight"] = parse_format_string(weights)
    return passes.quantize_transform_pass(
        mg, {"by": "type", "linear": {"config": {k: v for k, v in config.items() if v}}}
    )[0]


ELSEWHERE = """
import importlib.abc, sys, torch

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("chop", "transformers"):
            raise ImportError(name)

sys.meta_path.insert(0, Hidden())
tensors, expected = torch.load(sys.argv[2])
package = torch._inductor.aoti_load_package(sys.argv[1])
assert package.get_metadata()["inputs"] == "x,pair.scale,pair.shift"
for found, right in zip(package(*tensors), expected, strict=True):
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
assert "chop" not in sys.modules
print("equal")
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("inputs", ["8.5", None])
def test_a_package_answers_elsewhere_as_the_graph_does(inputs, tmp_path):
    mg = frozen_graph(inputs)
    settings = {"compile": "aot", "path": tmp_path / "model"}
    _, info = passes.freeze_transform_pass(mg, settings)
    assert info["path"] == tmp_path / "model.pt2" and [*tmp_path.iterdir()] == [info["path"]]
    assert info["inputs"] == ["x", "pair.scale", "pair.shift"]
    assert info["outputs"] == ["logits", "hidden"] and info["unchecked"] == []
    assert info["varying"] == {key: [0] for key in info["inputs"]}
    tensors = [torch.randn(7, 12), torch.rand(7, 16), torch.randn(7, 16)]
    with torch.no_grad():
        x, scale, shift = tensors
        expected = [*mg.model(x, {"scale": scale, "shift": shift}).values()]
        for found, right in zip(info["compiled"](*tensors), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    torch.save((tensors, expected), tmp_path / "rows")
    command = [sys.executable, "-c", ELSEWHERE, info["path"], tmp_path / "rows"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inputs", ["mxint", "scale_integer:width=8"])
def test_rounding_that_needs_chop_is_refused_by_format(inputs, tmp_path):
    mg, before = frozen_graph(inputs), [*tmp_path.iterdir()]
    label = parse_format_string(inputs).label
    with pytest.raises(GraphError, match="runs without chop, but rounding to") as caught:
        passes.freeze_transform_pass(mg, {"compile": "aot", "path": tmp_path / "model.pt2"})
    assert label in str(caught.value) and "{'compile': True}" in str(caught.value)
    assert [*tmp_path.iterdir()] == before


def test_a_package_that_differs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(pt2, "compile_package", lambda program, path, names: path.write_bytes(b""))
    monkeypatch.setattr(
        pt2, "load_package", lambda path: lambda *x: [torch.ones(4, 3), torch.ones(4, 16)]
    )
    settings = {"compile": "aot", "path": tmp_path / "model.pt2"}
    with pytest.raises(VerificationError, match="the output 'logits' by .*%; no file"):
        passes.freeze_transform_pass(frozen_graph("8.5"), settings)
    assert [*tmp_path.iterdir()] == []

    def fails(program, path, names):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(pt2, "compile_package", fails)
    with pytest.raises(GraphError, match="ahead of time: no compiler; try") as caught:
        passes.freeze_transform_pass(frozen_graph("8.5"), settings)
    assert "and more" not in str(caught.value)


def test_answers_are_compared_by_what_they_are():
    share = pt2._share_of_difference
    x = torch.tensor([1.0, torch.inf, torch.nan, -torch.inf])
    assert share(x, x.clone()) == 0 and share(x, -x) == math.inf
    assert share(torch.tensor([1.0, 0.1]), torch.tensor([1.0, 0.0])) == pytest.approx(0.1)
    assert share(torch.tensor([3, 4]), torch.tensor([3, 5])) == math.inf
    assert share(torch.ones(2), torch.ones(2).double()) == math.inf == share(x, x[:1])
    assert share(torch.zeros(2), torch.zeros(2)) == 0
