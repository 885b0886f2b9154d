import torch

from chop.quantization.folding.smoothquant import smoothing_scale


def test_channels_without_a_range_are_left_alone():
    amax = torch.tensor([0.0, 2.0, 4.0, float("inf")])
    weights = [torch.tensor([[1.0, 0.0, -4.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0, 1.0]])]
    assert smoothing_scale(amax, weights, 0.5).tolist() == [1, 1, 1, 1]
    assert smoothing_scale(amax[2:3], [weights[0][:, 2:3]], 1.0).tolist() == [4]
