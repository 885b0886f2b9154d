"""Circuits of low-bit networks with trained batch norms: the shapes of FINN's TFC and CNV."""

import pytest
from torch import nn

from tests.hardware.bench import check_graph, needs_tools
from tests.integer.test_norms import images, integer, trained

pytestmark = needs_tools


def tfc():
    """Linear layers with norms, as TFC, of fewer features."""
    layers = [nn.Flatten(), nn.Linear(49, 16, bias=False), nn.BatchNorm1d(16)]
    for _ in range(2):
        layers += [nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16)]
    return nn.Sequential(*layers, nn.Linear(16, 10, bias=False))


def cnv():
    """Convolutions with norms and pools, as CNV, of fewer channels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(4, 6, 2, bias=False), nn.BatchNorm2d(6), nn.Flatten()),
        *(nn.Linear(24, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 4)),
    )


@pytest.mark.long
def test_a_norm_of_an_image_ahead_of_a_convolution(tmp_path):
    model = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Flatten())
    norm, x = {"name": "integer", "width": 8, "frac_width": 5}, images(3, 2, 5, 5)
    _, lowered, _ = integer(trained(model), x, 4, batch_norm2d=norm)
    check_graph(lowered, {"input": x}, 64, tmp_path)


@pytest.mark.parametrize("weight", ["binary", "ternary", "integer"])
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize(("net", "size", "fold"), [(tfc, 7, 98), (cnv, 11, 1000)])
@pytest.mark.sampled(1)
def test_a_network_with_norms(net, size, fold, width, weight, tmp_path):
    x = images(4, 1, size, size)
    _, lowered, rows = integer(trained(net()), x, width, weight)
    assert max(row["largest"] for row in rows) <= 1
    built = check_graph(lowered, {"input": x}, fold, tmp_path)
    name = "chop_thresholds" if width <= 4 else "chop_affine"
    assert f"rtl/{name}.sv" in built.design.files
