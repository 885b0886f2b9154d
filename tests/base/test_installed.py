"""Packages that do not fit, and advice that fits how chop was installed."""

import importlib.metadata
import json
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

from chop.actions import doctor
from chop.actions.doctor import OK, OPTIONAL, WRONG
from chop.base import installed
from chop.base.installed import fitting_packages, how_to_get, misfit, require
from chop.errors import ConfigError, UnavailableError
from chop.models import load_model
from chop.report.ui.server import serve
from chop.search import storage
from tests.fresh import printed_by

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
EDITABLE = {"url": "file:///x", "dir_info": {"editable": True}}
ORIGINS = [
    (json.dumps(EDITABLE), f"pip install -e '{PYPROJECT.parent}[gguf]'",
     f"pip install -e {PYPROJECT.parent}"),
    (None, "pip install 'mase-chop[gguf]'", "pip install mase-chop"),  # of an index
    (json.dumps({"url": "file:///x.whl", "archive_info": {}}), "pip install 'mase-chop[gguf]'",
     "pip install mase-chop"),
    (json.dumps({"url": "file:///x", "dir_info": {}}), "pip install 'mase-chop[gguf]'",
     "pip install mase-chop"),
]  # fmt: skip


@pytest.mark.parametrize("module", ["nothing_of_this_name", "nothing_of_this_name.part"])
def test_packages_that_chop_does_not_need_are_installed_themselves(module):
    with pytest.raises(UnavailableError, match=f"npz needs {module}: pip install {module}$"):
        require("npz", module, extra="")
    with pytest.raises(UnavailableError, match="gguf"):
        require("npz", module, extra="gguf")


@pytest.mark.parametrize("origin, part, whole", ORIGINS)
def test_advice_is_as_chop_was_installed(origin, part, whole, monkeypatch):
    found = types.SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    assert (how_to_get("gguf"), how_to_get()) == (part, whole)
    monkeypatch.setattr(doctor, "version", lambda name: None)
    monkeypatch.setattr(doctor, "misfit", lambda text: None)
    use = doctor._optional_parts()["gguf"]
    assert doctor._part("gguf", use, ["gguf>=1"]).detail == f"for chop export --to gguf: {part}"


@pytest.mark.parametrize(
    "found, state", [("0.28.1", OK), ("0.28.0+cpu", OK), ("0.20.0", WRONG), (None, OPTIONAL)]
)
def test_doctor_says_which_torchvision_fits(found, state, monkeypatch):
    for module in (doctor, installed):
        monkeypatch.setattr(module, "version", lambda name: "1.0.31" if name == "timm" else found)
    asked = ["timm>=1.0.20,<2; extra == 'timm'", "torchvision<0.29,>=0.28; extra == 'timm'"]
    finding = doctor._part("timm", doctor.EXTRAS["timm"], asked)
    assert finding.state == state
    if state == WRONG:
        assert "torchvision 0.20.0, needed <0.29,>=0.28: pip install" in finding.detail


def test_what_is_installed_fits():
    assert not any(map(misfit, importlib.metadata.requires("mase-chop")))


def test_torchvision_of_the_extra_is_the_one_of_our_torch():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["timm"]]
    torch, vision = (
        re.search(rf"^{name}>=(\d+)\.(\d+),", "\n".join(asked), re.M)
        for name in ("torch", "torchvision")
    )
    # torch 2.N goes with torchvision 0.(N + 15).
    assert (torch[1], vision[1]) == ("2", "0") and int(vision[2]) == int(torch[2]) + 15


def test_onnx_is_a_dependency_and_its_part_stays_as_a_name(monkeypatch):
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    names = {re.split(r"[^\w.-]", text)[0] for text in project["dependencies"]}
    parts = project["optional-dependencies"]
    assert {"onnx", "onnxscript", "onnxruntime"} <= names and parts["onnx"] == []
    assert not any("[onnx]" in text for asked in parts.values() for text in asked)
    monkeypatch.setattr(installed, "_is_installed", lambda name: name != "onnx")
    with pytest.raises(UnavailableError, match=r"needs onnx: pip install (-e /\S+|mase-chop)$"):
        require("ONNX", "onnx", extra="")


BREAKS = {
    "operator": "raise RuntimeError('operator torchvision::nms does not exist')",
    "symbol": "raise ImportError('undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb')",
    "removed": "from torch import no_such_name",
}


def place_torchvision(folder, code):
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(code)
    info = folder / "torchvision-0.20.0.dist-info"
    info.mkdir()
    text = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\n"
    (info / "METADATA").write_text(text)


@pytest.mark.parametrize("kind", BREAKS)
def test_a_torchvision_of_another_torch_is_one_sentence(kind, tmp_path, monkeypatch):
    place_torchvision(tmp_path, BREAKS[kind])
    monkeypatch.syspath_prepend(tmp_path)
    told = "torchvision 0.20.0 cannot be imported .*does not fit torch 2.*gets one that does"
    with pytest.raises(UnavailableError, match=told), fitting_packages():
        try:
            import torchvision  # noqa: F401
        except Exception as error:  # as transformers does
            raise ModuleNotFoundError("Could not import module 'ViT'.") from error


def test_other_errors_stay(tmp_path):
    for error in (KeyError("a"), ConfigError("b"), ImportError("no timm")):
        with pytest.raises(type(error), match=str(error)), fitting_packages():
            raise error


CODE = """
import sys
sys.path.insert(0, {folder!r})
from chop.cli import main
sys.argv = ["chop", "demo", "--out", {folder!r}]
try:
    main()
except SystemExit as error:
    print("code", error.code)
"""


@pytest.mark.long
def test_commands_and_models_say_so(tmp_path):
    place_torchvision(tmp_path, BREAKS["operator"])
    told = " ".join(printed_by(CODE.format(folder=str(tmp_path))).split())
    assert "UnavailableError: torchvision 0.20.0 cannot be imported" in told
    assert told.endswith("code 2") and "Traceback" not in told


def test_timm_that_is_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UnavailableError, match=r"needs the package timm: pip install .*\[timm\]'"):
        load_model("timm:resnet18")


@pytest.mark.parametrize(
    "itself, told",
    [
        ("2.13.0+cu130", "2.13.0+cu130"),  # a wheel for CUDA from PyPI
        ("2.13.0", "2.13.0"),
        ("2.13.01+x", "2.13.0"),  # another version's folder on the path
        (None, "2.13.0"),  # not imported
    ],
)
def test_a_version_names_the_build_of_a_package_that_is_imported(itself, told, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0")
    if itself is None:
        monkeypatch.delitem(sys.modules, "torch")
    else:
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=itself))
    assert installed.version("torch") == told
    assert misfit("torch<2.14,>=2.13") is None and misfit("torch>=2.14") == ">=2.14"


@pytest.mark.parametrize(
    ("use", "extra"),
    [
        (lambda: serve(Path(), 0, False), "ui"),
        (lambda: storage._server_engine("postgresql://localhost/a", True), "postgres"),
    ],
)
def test_commands_name_the_missing_part_as_chop_was_installed(monkeypatch, use, extra):
    monkeypatch.setattr(installed, "_is_installed", lambda module: False)
    monkeypatch.setattr(installed, "_is_checkout", lambda: True)
    with pytest.raises(UnavailableError, match=rf": pip install -e '/.*\[{extra}\]'$"):
        use()
