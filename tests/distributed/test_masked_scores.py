"""Masked scores on several processes: each rounds its part as one process does."""

import torch
from torch import Tensor

from chop.captured.padding.masks import MASKS_AHEAD
from chop.distributed.strategies import register_strategies
from chop.formats import MXInt, QuantSpec
from chop.nn import quantized as q
from tests.distributed import cluster

KEYS = 32


def parts() -> list[float]:
    """Largest differences of attention and of a softmax cut by samples and by heads."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    register_strategies()
    spec = QuantSpec.uniform(MXInt())
    x = torch.randn(2, 4, KEYS, 8, generator=torch.Generator().manual_seed(0))
    later = torch.ones(KEYS, KEYS).triu(1).bool()
    lowest = torch.zeros(1, 1, KEYS, KEYS).masked_fill(later, torch.finfo(torch.float32).min)

    def scores(x: Tensor, mask: Tensor) -> Tensor:
        of_two = {"input": "data_in", "other": "data_in"}
        every = spec.with_quantizers(data_out=MXInt())
        product = q.QuantScores(torch.matmul, of_two, every)
        scaled, added = (q.QuantCall(f, of_two, every) for f in (torch.mul, torch.add))
        scaled.meets_masks = added.meets_masks = True
        softmax = q.QuantSoftmax(dim=-1, config=spec)
        ahead = {MASKS_AHEAD: (("added", mask, ()),)}
        result: Tensor = softmax(added(scaled(product(x, x.mT, **ahead), 0.5, **ahead), mask))
        return result

    def filled(x: Tensor, mask: Tensor) -> Tensor:
        of_three = {"input": "data_in", "mask": None, "value": None}
        of_two = {"condition": None, "input": "data_in", "other": "data_in"}
        fill = q.QuantCall(torch.masked_fill, of_three, spec)
        where = q.QuantCall(torch.where, of_two, spec)
        scores = fill(x @ x.mT, mask, -1e9)
        hidden = torch.zeros_like(scores) - 1e9
        return scores + where(mask, hidden, x @ x.mT)

    attention = q.QuantScaledDotProductAttention(spec)
    found = []
    for cut in (0, 1):
        for mask in (~later[None, None], lowest):
            given = distribute_tensor(mask, mesh, [Replicate()])
            part = distribute_tensor(x, mesh, [Shard(cut)])
            y = attention(part, part, part, given)
            assert str(y.placements[0]) == f"S({cut})"
            found.append((y.full_tensor() - attention(x, x, x, mask)).abs().max().item())
        y = scores(part, distribute_tensor(lowest, mesh, [Replicate()]))
        found.append((y.full_tensor() - scores(x, lowest)).abs().max().item())
        y = filled(part, distribute_tensor(later[None, None], mesh, [Replicate()]))
        found.append((y.full_tensor() - filled(x, later[None, None])).abs().max().item())
    return found


def test_each_process_rounds_visible_scores_of_its_part():
    for found in cluster.run(parts, 2):
        assert len(found) == 8 and max(found) < 1e-6
