"""Layers of timm and torchvision load from checkpoints where those packages are installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from chop.ir.storage.allowed import MAX_IMPORTS
from tests.ir.checkpoint_cases import edit, reload

GATE = """
import torch
from torch import nn
from torch.nn import Linear

class Gate(nn.Module):
    def __init__(self):
        raise RuntimeError("loading runs no constructor")

    def forward(self, x):
        return torch.sigmoid(x) * self.factor

class Helper:
    pass

def helper(x):
    return x
"""
MARK = "from pathlib import Path; Path(__file__).with_name('MARK').touch()\n"
FILES = {
    "timm/__init__.py": "",
    "timm/layers/__init__.py": "",
    "timm/layers/gate.py": GATE,
    "timm/data.py": MARK + GATE,
    "timm-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: timm\nVersion: 1.0\n",
    "torchvision/__init__.py": "",
    "torchvision/ops/__init__.py": "",
    "torchvision/ops/misc.py": GATE,
    "torchvision/io.py": MARK + GATE,
    "torchvision-1.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 1.0\n"
    ),
}


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("timm", "torchvision")]:
        del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with packages of both names, and what says that they were installed there."""
    for package in ("timm", "torchvision"):
        if importlib.util.find_spec(package) is not None:
            pytest.skip(f"{package} itself is installed")
    site = tmp_path / "site"
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.syspath_prepend(site)
    yield site
    forget()


def gated(module: str) -> MaseGraph:
    cls = importlib.import_module(module).Gate
    gate = cls.__new__(cls)
    torch.nn.Module.__init__(gate)
    gate.factor = 2.0
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), gate)
    return MaseGraph(model, custom_ops=[cls], dummy_in={"input": torch.ones(3, 2)})


@pytest.mark.parametrize("module", ["timm.layers.gate", "torchvision.ops.misc"])
def test_layers_of_installed_packages_need_no_permission(
    site: Path, tmp_path: Path, module: str
) -> None:
    mg = gated(module)
    x = torch.randn(4, 2)
    expected = mg.model(x)
    mg.export(tmp_path / "graph")
    forget()
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(again.model(x), expected)
    assert type(again.modules["1"]).__module__ == module


@pytest.mark.parametrize(
    "reference",
    [
        *("timm.data:Gate", "torchvision.io:Gate", "timm.layers.gate:Helper", "timm:Gate"),
        *("timm.layers.gate:helper", "timm.layers.gate:Linear", "timm.layers.gate:nn"),
        *("timm.layers.gate:nn.Linear", "timm.layers.none:Gate", "timmy.layers.gate:Gate"),
    ],
)
@pytest.mark.sampled(3)
def test_other_things_of_those_packages_are_refused(
    site: Path, tmp_path: Path, reference: str
) -> None:
    gated("timm.layers.gate").export(tmp_path / "graph")
    forget()

    def change(document: Any) -> None:
        (record,) = (record for record in document["modules"] if record["path"] == "1")
        record["class"] = reference

    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=f"class '{reference}'.*not on the list"):
        MaseGraph.from_checkpoint(tmp_path / "graph")
    assert not list(site.rglob("MARK"))


@pytest.mark.parametrize("installed", [True, False])
def test_a_folder_that_only_has_the_name_is_not_imported(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    gated("timm.layers.gate").export(site / "graph")
    forget()
    (site / "timm" / "__init__.py").write_text(MARK)
    if not installed:
        (site / "timm-1.0.dist-info" / "METADATA").unlink()
        (site / "timm-1.0.dist-info").rmdir()
    else:
        monkeypatch.chdir(site)  # unpacked beside the checkpoint, with papers that say otherwise
    with pytest.raises(
        CheckpointError, match=r"timm\.layers\.gate:Gate'.*list of classes; install timm"
    ):
        MaseGraph.from_checkpoint(site / "graph")
    assert not list(site.rglob("MARK"))


def test_a_file_cannot_have_all_of_a_library_imported(tmp_path: Path) -> None:
    mg = MaseGraph(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    reload(mg, tmp_path)

    def change(document: Any) -> None:
        for i in range(2 * MAX_IMPORTS):
            name = f"transformers.models.none{i}.configuration_none{i}:Config"
            document["configs"].append({"class": name, "model_type": "none", "attributes": {}})

    edit(tmp_path, change)
    with (
        pytest.warns(UserWarning, match="is missing"),
        pytest.raises(CheckpointError, match=f"over {MAX_IMPORTS} modules"),
    ):
        MaseGraph.from_checkpoint(tmp_path / "graph")
