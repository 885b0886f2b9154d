"""Captures, copies and passes leave nothing behind in their process, however often they run."""

import copy
import gc
import linecache
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.state.weak_cache import weak_cache
from chop.errors import CaptureError
from chop.export import pt2
from chop.export.onnx.export import export as export_onnx
from chop.ir import MaseGraph
from chop.passes import quantize_transform_pass
from tests import programs

INTEGERS = {"name": "integer"} | {
    f"{operand}_{field}": width
    for operand in ("data_in", "weight", "bias")
    for field, width in (("width", 8), ("frac_width", 4))
}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(self.first(x).relu()))


class Asking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class PartlyAsking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.asking = Layers(), Asking()

    def forward(self, x: Tensor) -> Tensor:
        return self.asking(self.layers(x))


def captured(model: nn.Module) -> MaseGraph:
    return MaseGraph(model, dummy_in={"x": torch.ones(2, 8)})


def quantized() -> MaseGraph:
    return quantize_transform_pass(captured(Layers().eval()), {"default": {"config": INTEGERS}})[0]


def of_a_local_class() -> None:
    shift = torch.ones(8)

    class Shifted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + shift).relu()

    captured(Shifted())


def refused() -> None:
    with pytest.raises(CaptureError):
        capture(PartlyAsking(), {"x": torch.ones(2, 8)}, strict=True)


@pytest.fixture(name="graph", scope="module")
def _graph() -> MaseGraph:
    return captured(Layers())


REPEATED: dict[str, Callable[[MaseGraph], object]] = {
    "capture": lambda graph: captured(Layers()),
    "capture of a local class": lambda graph: of_a_local_class(),
    "refused capture": lambda graph: refused(),
    "deep copy": lambda graph: copy.deepcopy(graph),
    "pickle": lambda graph: pickle.loads(pickle.dumps(graph)),
    "quantize": lambda graph: quantize_transform_pass(graph, {"default": {"config": INTEGERS}}),
    "new code": lambda graph: graph.model.recompile(),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", REPEATED)
def test_nothing_is_left_behind(what, graph):
    def repeat(times: int) -> int:
        for _ in range(times):
            REPEATED[what](graph)
        gc.collect()
        return len(gc.get_objects())

    repeat(2)
    before, lines = repeat(1), len(linecache.cache)
    # One capture once left 124 objects. Some caches of sympy and torch go on filling up.
    assert repeat(8) - before < 40
    assert len(linecache.cache) - lines <= 1


def to_onnx(folder: Path) -> None:
    pytest.importorskip("onnxscript")
    export_onnx(quantized(), folder / "a.onnx", float_fallback=True, dynamic_axes=True)


def to_package(folder: Path) -> None:
    pt2.write_target(quantized(), folder / "a.pt2")


@pytest.mark.long
@pytest.mark.parametrize("write", [to_onnx, to_package])
def test_an_export_leaves_nothing_behind(write, tmp_path):
    def repeat(times: int) -> int:
        for _ in range(times):
            write(tmp_path)
        gc.collect()
        return len(gc.get_objects())

    repeat(3)
    before = repeat(1)
    # Each once left 220 objects or more: an environment of sizes, and all of its fake tensors.
    # Caches of sympy go on filling up. torch keeps the nodes of its last trace.
    assert repeat(4) - before < 200


def test_what_a_local_class_holds_is_let_go():
    def made() -> weakref.ref:
        table = torch.ones(8)

        class Tabled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x: Tensor) -> Tensor:
                return self.linear(x) + table

        mg = captured(Tabled())
        copied = copy.deepcopy(mg)
        torch.testing.assert_close(copied.model(torch.ones(3, 8)), mg.model(torch.ones(3, 8)))
        return weakref.ref(table)

    held = made()
    gc.collect()
    assert held() is None


def test_a_live_graph_keeps_the_lines_of_its_code():
    kept, gone = captured(Layers()), captured(Layers())
    files = [each.model.forward.__func__.__code__.co_filename for each in (kept, gone)]
    del gone
    gc.collect()
    first, second = (linecache.getlines(file) for file in files)
    assert any("second" in line for line in first) and second == []


def test_answers_about_code_live_as_long_as_it_does():
    asked = []

    @weak_cache
    def get_name(cls: type, end: str = "") -> str:
        asked.append(end)
        return cls.__name__ + end

    made = type("Made", (), {})
    assert [get_name(made), get_name(made), get_name(made, "s")] == ["Made", "Made", "Mades"]
    assert asked == ["", "s"]
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


SOAK = """
import torch
from torch import nn
from chop.ir import MaseGraph
from tests.capture.test_memory import Layers

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

for number in range(1100):
    if number == 100:
        before = resident()
    MaseGraph(Layers(), dummy_in={"x": torch.ones(2, 8)})
print(resident() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_captures_stay_within_ten_megabytes(tmp_path):
    script = tmp_path / "soak.py"
    script.write_text(SOAK)
    done = programs.run(script)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10
