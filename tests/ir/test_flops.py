"""Operations of calls are those that torch's own counter counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from chop.distributed.planning.work import count_flops
from chop.ir import MaseGraph
from chop.ir.flops import FlopCounts
from chop.passes import add_common_metadata_analysis_pass
from chop.problems.mixed_precision.layers import Layers

pytestmark = pytest.mark.filterwarnings("ignore:.*(chain_matmul|mkldnn|onednn|projections)")

attention = F.scaled_dot_product_attention
Q, KV = (2, 4, 7, 3), (2, 4, 5, 3)
CALLS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "Tensor.mm": (lambda a, b: a.mm(b), [(3, 4), (4, 5)]),
    "operator": (lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "with itself": (lambda a: a @ a, [(4, 4)]),
    "broadcast": (torch.matmul, [(2, 1, 3, 4), (5, 4, 6)]),
    "vector and matrix": (torch.matmul, [(4,), (4, 5)]),
    "vector and matrices": (torch.matmul, [(4,), (2, 4, 5)]),
    "linalg.matmul": (torch.linalg.matmul, [(3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "Tensor.baddbmm": (lambda a, b, c: a.baddbmm(b, c, beta=0.5), [(3, 5), (2, 3, 4), (2, 4, 5)]),
    "addmm": (torch.addmm, [(5,), (3, 4), (4, 5)]),
    "addmm by name": (lambda a, b, c: torch.addmm(mat2=c, mat1=b, input=a), [(5,), (3, 4), (4, 5)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
    "einsum of three": (
        lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c),
        [(3, 4), (4, 5), (5, 6)],
    ),
    "einsum with dots": (
        lambda a, b: torch.einsum("...hd,...kd->...hk", a, b),
        [(2, 3, 4, 5), (2, 3, 6, 5)],
    ),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=2), [(3, 4, 5), (4, 5, 6)]),
    "tensordot of axes": (lambda a, b: torch.tensordot(a, b, ([1], [0])), [(3, 4, 5), (4, 6)]),
    "inner": (torch.inner, [(3, 4), (5, 4)]),
    "outer": (torch.outer, [(3,), (4,)]),
    "chain_matmul": (torch.chain_matmul, [(3, 4), (4, 5), (5, 6)]),
    "multi_dot": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), [(3, 4), (4, 5), (5, 6)]),
    "matrix_power": (lambda a: torch.linalg.matrix_power(a, 3), [(4, 4)]),
    "attention": (attention, [Q, KV, KV]),
    "attention by name": (lambda q, k, v: attention(key=k, value=v, query=q), [Q, KV, KV]),
    "causal": (lambda q, k, v: attention(q, value=v, key=k, is_causal=True), [Q, Q, Q]),
    "grouped queries": (
        lambda q, k, v: attention(q, k, v, enable_gqa=True),
        [Q, (2, 2, 7, 3), (2, 2, 7, 3)],
    ),
    "attention without heads": (attention, [(2, 7, 4), (2, 5, 4), (2, 5, 4)]),
    "conv1d": (lambda x, w: F.conv1d(x, w, groups=2), [(2, 4, 9), (6, 2, 3)]),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=2),
        [(2, 4, 9, 9), (6, 4, 3, 3), (6,)],
    ),
    "conv2d by name": (lambda x, w: torch.conv2d(weight=w, input=x), [(2, 4, 9, 9), (6, 4, 3, 3)]),
    "conv3d": (F.conv3d, [(2, 4, 5, 5, 5), (6, 4, 3, 3, 3)]),
    "conv_transpose1d": (F.conv_transpose1d, [(2, 4, 9), (4, 6, 3)]),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2),
        [(2, 4, 9, 9), (4, 3, 3, 3)],
    ),
    "conv_transpose3d": (F.conv_transpose3d, [(2, 4, 5, 5, 5), (4, 6, 3, 3, 3)]),
    "linear": (F.linear, [(2, 3, 4), (5, 4)]),
    "linear by name": (lambda x, w: F.linear(weight=w, input=x), [(2, 3, 4), (5, 4)]),
    "relu": (torch.relu, [(3, 4)]),
    "softmax": (lambda x: x.softmax(-1), [(3, 4)]),
    "unfold": (lambda x: F.unfold(x, 3), [(2, 3, 5, 5)]),
}
LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(4, 5), (2, 3, 4)),
    (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9)),
    (nn.Conv2d(4, 6, 3, padding="same"), (2, 4, 9, 9)),
    (nn.Conv2d(6, 4, (3, 2), stride=2), (3, 6, 9, 8)),
    (nn.Conv2d(6, 6, 3, groups=6, padding=1), (3, 6, 9, 8)),
    (nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5)),
    (nn.ConvTranspose1d(4, 6, 3), (2, 4, 9)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 9, 9)),
    (nn.ConvTranspose3d(4, 6, 3), (2, 4, 5, 5, 5)),
    (nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True), (2, 7, 4)),
    (nn.LSTM(4, 5, proj_size=3), (7, 2, 4)),
    (nn.GRU(4, 5, 2), (7, 2, 4)),
    (nn.RNN(4, 5), (7, 2, 4)),
    (nn.LSTMCell(4, 5), (2, 4)),
    (nn.GRUCell(4, 5), (2, 4)),
    (nn.RNNCell(4, 5), (2, 4)),
    (nn.BatchNorm2d(4), (2, 4, 9, 9)),
    (nn.Unfold(3), (2, 4, 9, 9)),
]


def counted_by_torch(call: Callable[..., Any], *tensors: Tensor) -> int:
    # The fused kernels of CPUs are not in torch's table.
    plain = torch.backends.mkldnn.flags(enabled=False)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), plain, counter:
        call(*tensors)
    return int(counter.get_total_flops())


def counted(root: fx.GraphModule, *tensors: Tensor) -> int:
    counts, total = FlopCounts(), 0

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            nonlocal total
            result = super().run_node(n)
            found = [counts.count_node(root, n, self.env, result) for _ in range(2)]
            assert found[0] == found[1]
            total += found[0]
            return result

    with torch.no_grad():
        Run(root.eval()).run(*tensors)
    return total


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    call, shapes = CALLS[name]
    tensors = [torch.randn(shape) for shape in shapes]

    def forward(*given: Any) -> Any:
        return call(*given)

    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{number}") for number in range(len(shapes))]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    graph.output(forward(*(fx.Proxy(node, tracer) for node in inputs)).node)
    expected = counted_by_torch(call, *tensors)
    assert counted(fx.GraphModule(nn.Module(), graph), *tensors) == expected
    assert (expected > 0) == (name not in ("outer", "relu", "softmax", "unfold"))


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda x: type(x).__name__)
def test_layers(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    root = nn.Module()
    root.add_module("layer", layer.eval())
    graph = fx.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    expected = counted_by_torch(layer, x)
    assert counted(fx.GraphModule(root, graph), x) == expected


def test_what_torch_leaves_out_is_counted_by_the_rule() -> None:
    a, b, v = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(4)
    for args, flops in ([a, v], 2 * 2 * 3 * 4), ([v, v], 8):
        graph = fx.Graph()
        inputs = [graph.placeholder(f"x{number}") for number in range(2)]
        graph.output(graph.call_function(torch.matmul, tuple(inputs)))
        assert counted(fx.GraphModule(nn.Module(), graph), *args) == flops
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{number}") for number in range(3)]
    graph.output(graph.call_function(torch.addbmm, tuple(inputs)))
    root = fx.GraphModule(nn.Module(), graph)
    assert counted(root, torch.randn(3, 5), a, b) == 2 * 2 * 3 * 4 * 5


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(4, 4), nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.cell(x)
        y = torch.einsum("bi,ij->bj", self.out(h), self.table)
        return torch.baddbmm(c[:, None], y[:, None], self.table.t().expand(x.shape[0], 6, 4))


def test_planner_and_costs_count_the_same() -> None:
    model, x = Mixed(), torch.randn(3, 4)
    mg = MaseGraph(model, dummy_in={"x": x})
    values: dict[fx.Node, Any] = {}

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    Run(mg.model).run(x)
    total = sum(count_flops(mg, node, values, [x]) for node in mg.nodes)
    assert total == counted_by_torch(model, x)
    (product,) = (node for node in mg.nodes if node.target is torch.baddbmm)
    given = [values[source] for source in product.all_input_nodes]
    assert count_flops(mg, product, given, [values[product]]) == 2 * 3 * 1 * 6 * 4
    add_common_metadata_analysis_pass(mg)
    layers = Layers(mg, [{"x": x}])
    assert layers.by_name["out"].macs == 4 * 4
