"""A drawing is valid, complete, deterministic, and nothing in it overlaps or overflows."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.ir.drawing.draw import draw, to_svg
from chop.ir.drawing.hierarchy import Item, without_cycles
from chop.ir.drawing.layout import Block, Placed, lay_out
from chop.ir.drawing.view_model import build_view_model
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantCall, QuantLinear

SVG = "{http://www.w3.org/2000/svg}"


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


class Stack(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell() for _ in range(depth))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x)
        return self.head(x.flatten(1))


@cache
def stack(depth: int = 2) -> MaseGraph:
    return MaseGraph(Stack(depth), dummy_in={"x": torch.randn(3, 1, 8)})


@cache
def bert(layers: int, *names: str) -> MaseGraph:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=32,
        vocab_size=50,
    )  # fmt: skip
    return MaseGraph(BertForSequenceClassification(config), hf_input_names=names)


def place(mg: MaseGraph, depth: int | None = None) -> Block:
    plan = build_view_model(mg.model, depth)
    inputs = [n for n, node in enumerate(plan.nodes) if node.op == "placeholder"]
    return lay_out(plan.root, plan.uses, inputs)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def overlap(a: Placed, b: Placed) -> bool:
    beside = a.x + a.width <= b.x or b.x + b.width <= a.x
    above = a.y + a.height <= b.y or b.y + b.height <= a.y
    return not (beside or above)


def within(inner: Placed, outer: Placed) -> bool:
    across = outer.x <= inner.x and inner.x + inner.width <= outer.x + outer.width
    return across and outer.y <= inner.y and inner.y + inner.height <= outer.y + outer.height


# --- the picture as a whole --------------------------------------------------------------------


def test_every_node_has_a_box_with_its_full_name(tmp_path: Path) -> None:
    mg = stack()
    path = draw(mg.model, tmp_path / "new" / "folder" / "graph.svg")
    root = ET.parse(path).getroot()
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    for node in mg.nodes:
        assert any(title.splitlines()[0] == node.name for title in titles), node.name
    assert any("test_draw.py:" in title for title in titles)
    assert [p.name for p in path.parent.iterdir()] == ["graph.svg"]


def test_the_suffix_is_added_and_other_dots_stay(tmp_path: Path) -> None:
    assert draw(stack().model, tmp_path / "graph.v1").name == "graph.v1.svg"
    assert draw(stack().model, str(tmp_path / "graph.svg")) == tmp_path / "graph.svg"


@pytest.mark.parametrize("name", ["graph.png", "graph.PDF"])
def test_pictures_of_another_kind_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the picture is an SVG file.*expected 'graph.svg'"):
        stack().draw(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_always_gives_the_same_picture() -> None:
    assert to_svg(stack().model) == to_svg(stack().model) == to_svg(stack().copy().model)


def test_shapes_classes_and_sizes_are_written_out() -> None:
    written = texts(to_svg(stack().model))
    assert {"Linear", "LayerNorm", "(B, 1, 16)", "(B, 2)", "B = x.shape[0]"} <= {*written}
    assert "matrix product 5" in written and "normalization 2" in written
    assert any(text.startswith("0 ") for text in written), "the frame of cells.0 has a label"


def test_odd_names_are_escaped() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({"<&'>": nn.Linear(2, 2)})

        def forward(self, x: Tensor) -> Tensor:
            return self.layers["<&'>"](x)

    svg = to_svg(MaseGraph(Odd(), dummy_in={"x": torch.ones(2, 2)}).model)
    assert any("<&'>" in text for text in texts(svg))


def test_numbers_in_names_hide_no_difference() -> None:
    """The first of two sums is gone; the second has its name now."""

    class Sums(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def forward(self, x: Tensor) -> Tensor:
            if self.count > 1:
                x = x + 1
            return torch.relu(x.exp() + 1)

    two, one = (MaseGraph(Sums(count), dummy_in={"x": torch.ones(2, 3)}) for count in (2, 1))
    (line,) = two.diff(one)
    assert line == "- add: call_function add"
    svg = to_svg(two.model, None, one.model)
    assert texts(svg).count("- add") == 1 and ">gone 1<" in svg and ">the same 5<" in svg
    assert ">new 1<" in to_svg(one.model, None, two.model)


def test_quantized_and_folded_modules_are_changed_ones(tmp_path: Path) -> None:
    mg = stack()
    other = mg.copy()
    node = other.node("cells_0_up")
    twin = QuantLinear.from_float(other.get_module(node), QuantSpec(weight=Integer(8, 4)))
    other.replace(node, twin)
    unfolded = texts(mg.draw(tmp_path / "a", compare=other).read_text())
    assert "~ up" in unfolded and sum(text.startswith("~ ") for text in unfolded) == 1
    folded = texts(to_svg(mg.model, 1, other.model))
    assert "~ cells" in folded and {"1 changed", "9 the same"} <= {*folded}
    with pytest.raises(ConfigError, match="compare: expected MaseGraph or None, got a Stack"):
        mg.draw(tmp_path / "b", compare=Stack(1))
    same = texts(to_svg(mg.model, None, mg.copy().model))
    assert not any(text.startswith(("+ ", "- ", "~ ")) for text in same)


def test_formats_are_shown_and_what_stays_float_is_dashed() -> None:
    mg = stack().copy()
    spec = QuantSpec(Integer(8, 4), Integer(6, 5), Integer(8, 4))
    for node in mg.nodes:
        if str(node.target).endswith("up"):
            mg.replace(node, QuantLinear.from_float(mg.get_module(node), spec))
        if node.target is torch.relu:
            mg.replace(node, QuantCall(torch.relu, {"input": "data_in"}, spec))
    svg = to_svg(mg.model)
    written = texts(svg)
    assert written.count("integer 8.4: data_in bias") == 2
    assert written.count("integer 6.5: weight") == 2
    assert written.count("integer 8.4: data_in") == 2
    assert "dashed: could be quantized, is float" in written
    # two `down`, two norms, two additions, one head
    assert svg.count("stroke-dasharray") == 7
    assert "stroke-dasharray" not in to_svg(stack().model)


# --- folding -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_large_graph_is_folded_until_it_can_be_read() -> None:
    mg = stack(60)
    boxes = [placed for placed in place(mg).placed if not placed.item.children]
    assert len(mg.nodes) > 300 and 60 < len(boxes) <= 120
    written = texts(to_svg(mg.model))
    assert written.count("5 nodes") == 60
    assert sum("quantized" in text for text in written) == 0


def test_depth_says_how_far_to_unfold() -> None:
    sizes = [len([p for p in place(stack(), d).placed if not p.item.children]) for d in (1, 2, 3)]
    assert sizes == [5, 6, 14]
    for wrong in (0, -1, "2", 1.5):
        with pytest.raises(ConfigError, match="depth"):
            to_svg(stack().model, wrong)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_big_model_is_drawn_at_once() -> None:
    mg = bert(12, "input_ids", "attention_mask", "labels")
    start = time.perf_counter()
    svg = to_svg(mg.model)
    assert time.perf_counter() - start < 2
    assert svg.count("data-node=") <= 120
    assert {"attention", "intermediate", "BertAttention"} <= {*texts(svg)}


# --- geometry ----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [None, 1, 99])
@pytest.mark.parametrize("make", [stack, lambda: bert(2, "input_ids", "attention_mask", "labels")])
@pytest.mark.sampled(1)
def test_boxes_never_overlap_and_stay_in_their_frames(make: object, depth: int | None) -> None:
    block = place(make(), depth)  # type: ignore[operator]
    whole = Placed(block.item, 0, 0, block.width, block.height)
    boxes = [placed for placed in block.placed if not placed.item.children]
    frames = [placed for placed in block.placed if placed.item.children]
    for n, box in enumerate(boxes):
        assert within(box, whole)
        assert not any(overlap(box, other) for other in boxes[:n])
        for frame in frames:
            belongs = {*box.item.leaves} <= {*frame.item.leaves}
            assert within(box, frame) if belongs else not overlap(box, frame)


def test_lines_run_down_from_box_to_box() -> None:
    plan, block = build_view_model(stack().model), place(stack())
    assert all(line.start[1] <= line.turn[1] <= line.end[1] for line in block.lines)
    drawn = sum(len(users) for users in plan.uses.values())
    assert sum(line.arrow for line in block.lines) == drawn
    tops = {(round(p.x + p.width / 2, 3), round(p.y, 3)) for p in block.placed}
    for line in block.lines:
        assert not line.arrow or (round(line.end[0], 3), round(line.end[1], 3)) in tops


def test_lines_keep_clear_of_boxes() -> None:
    block = place(bert(2, "input_ids", "attention_mask", "labels"))
    boxes = [placed for placed in block.placed if not placed.item.children]
    for line in block.lines:
        x = line.start[0]
        for box in boxes:
            across = box.x < x < box.x + box.width
            down = line.start[1] < box.y + box.height and box.y < line.turn[1]
            assert not (across and down and line.source not in box.item.leaves)


def test_text_fits_into_its_box() -> None:
    class Wordy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            name = "a_name_that_is_far_too_long_for_any_box_but_legal_in_python"
            self.add_module(name, nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
            self.other = nn.Linear(2, 2)
            self.name = name

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, self.name)(x) + self.other(x)

    mg = MaseGraph(Wordy(), dummy_in={"x": torch.ones(2, 2)})
    for depth in (1, 2):
        plan, block = build_view_model(mg.model, depth), place(mg, depth)
        for placed in block.placed:
            words = plan.box(placed.item)
            # The widest of the common monospaced fonts takes 0.62 em a letter.
            if placed.item.children:
                assert len(f"{words.title} {words.kind}") * 10 * 0.62 <= placed.width
                continue
            assert len(words.title) * 11 * 0.62 <= placed.width
            assert all(len(line) * 10 * 0.62 <= placed.width for line in words.lines)
    assert "a_name_that_is_f…in_python" not in to_svg(mg.model) and "…" in to_svg(mg.model)


def test_a_module_that_is_called_twice_is_drawn_once_per_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = Cell()

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(torch.tanh(self.cell(x)))

    mg = MaseGraph(Twice(), dummy_in={"x": torch.ones(2, 8)})
    block = place(mg, 1)
    names = [placed.item.key for placed in block.placed]
    assert [name for name in names if name.startswith("cell")] == ["cell#0", "cell#1"]
    assert texts(to_svg(mg.model, 1)).count("5 nodes") == 2


def test_calls_of_one_module_in_one_frame_all_have_boxes() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.act(self.act(x)))

    mg = MaseGraph(nn.Sequential(Shared(), nn.Linear(2, 2)), dummy_in={"input": torch.ones(2, 2)})
    assert texts(to_svg(mg.model)).count("ReLU") == 3


def test_items_come_in_order_and_cycles_are_cut() -> None:
    a, b = Item("a", (0, 2)), Item("b", (1, 3))
    assert [item.key for item in without_cycles([b, a], {0: [1], 1: [], 2: [], 3: []})] == [
        "a",
        "b",
    ]
    cut = without_cycles([a, b], {0: [1], 1: [2], 2: [3], 3: []})
    assert [item.key for item in cut] == ["a#0", "b#0", "a#1", "b#1"]
    assert [item.leaves for item in cut] == [(0,), (1,), (2,), (3,)]


def test_an_edited_graph_without_metadata_is_drawn_too() -> None:
    mg = stack().copy()
    node = next(node for node in mg.nodes if node.target is torch.relu)
    with mg.fx_graph.inserting_after(node):
        new = mg.fx_graph.call_function(torch.sigmoid, (node,))
    node.replace_all_uses_with(new, lambda user: user is not new)
    assert "sigmoid" in texts(to_svg(mg.model))
