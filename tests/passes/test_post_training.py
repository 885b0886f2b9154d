"""GPTQ and SmoothQuant against rounding to nearest, on trained models and held-out rows."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from chop import MaseGraph, passes
from chop.data import get_tokenized_dataset, load_dataset
from chop.formats import Integer, QuantSpec
from chop.models import load_model
from chop.train import calibration_batches, default_dataset, load_trained, read_rows

from .conftest import with_metadata


class Workload:
    """A trained float graph, training rows to look at, and test rows to judge by."""

    def __init__(self, model, dataset, rows):
        self.graph = with_metadata(MaseGraph(model))
        self.batches = list(calibration_batches(model, dataset, rows=rows))
        self.test = list(read_rows(dataset["test"]).batches(64))
        self.labels = torch.cat([batch["labels"] for batch in self.test])
        self.exact = self.logits(self.graph)

    @torch.no_grad()
    def logits(self, mg):
        names = [name for name in mg.model.example_inputs if name != "labels"]
        return torch.cat(
            [mg.model(**{n: batch[n] for n in names})["logits"] for batch in self.test]
        )

    def judge(self, mg):
        """(accuracy, KL divergence to float)."""
        logits = self.logits(mg)
        divergence = F.kl_div(
            logits.log_softmax(-1),
            self.exact.log_softmax(-1),
            log_target=True,
            reduction="batchmean",
        )
        return (logits.argmax(-1) == self.labels).double().mean().item(), divergence.item()

    def nearest(self, mg, data_in, weight, operators=("linear",)):
        spec = {"config": QuantSpec(data_in=data_in, weight=weight)}
        rules = dict.fromkeys(operators, spec)
        mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
        return passes.calibrate_transform_pass(mg, {"batches": self.batches})[0]

    def gptq(self, mg):
        return passes.gptq_transform_pass(mg, {"batches": self.batches})[0]

    def smooth(self, **settings):
        settings = {"batches": self.batches, **settings}
        return passes.smoothquant_transform_pass(self.graph, settings)[0]


@pytest.fixture(scope="module")
def mlp():
    return Workload(load_trained("mlp"), default_dataset("mlp"), rows=256)


@pytest.fixture(scope="module")
def vit():
    return Workload(load_trained("vit"), default_dataset("vit"), rows=256)


@pytest.mark.long
def test_gptq_wins_back_what_three_bits_cost_an_mlp(mlp):
    nearest = mlp.nearest(mlp.graph, Integer(8, "minmax"), Integer(3, "minmax"))
    accuracy, divergence = mlp.judge(nearest)
    better_accuracy, better_divergence = mlp.judge(mlp.gptq(nearest))
    assert better_divergence < divergence / 4
    assert better_accuracy > accuracy + 0.01
    assert better_accuracy > mlp.judge(mlp.graph)[0] - 0.02


def test_smoothing_helps_three_bit_inputs_and_weights_of_an_mlp(mlp):
    formats = Integer(3, "mse"), Integer(3, "mse")
    _, divergence = mlp.judge(mlp.nearest(mlp.graph, *formats))
    smooth = mlp.smooth()
    assert mlp.judge(smooth)[1] < 1e-8
    assert mlp.judge(mlp.nearest(smooth, *formats))[1] < divergence * 0.85


@pytest.mark.slow
@pytest.mark.long  # each helps an MLP in the short suite
def test_both_help_a_vision_transformer_at_four_bits(vit):
    formats = Integer(4, "minmax"), Integer(4, "minmax")
    accuracy, divergence = vit.judge(vit.nearest(vit.graph, *formats))
    smooth_accuracy, smooth_divergence = vit.judge(vit.nearest(vit.smooth(), *formats))
    assert smooth_divergence < divergence / 2
    assert smooth_accuracy > accuracy + 0.02
    weights_only = vit.nearest(vit.graph, Integer(8, "minmax"), Integer(4, "minmax"))
    assert vit.judge(vit.gptq(weights_only))[1] < vit.judge(weights_only)[1] / 2


@pytest.fixture(scope="module")
def bert(data_folder):
    folder = str(data_folder / "bert-tiny-imdb")
    splits = load_dataset(data_folder / "imdb", limit=200)
    dataset = get_tokenized_dataset(splits, checkpoint=folder, max_length=128)
    return Workload(load_model(folder), dataset, rows=64)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.long  # each helps an MLP in the short suite
def test_both_help_bert_on_reviews_at_three_bits(bert):
    formats = Integer(8, "minmax"), Integer(3, "minmax")
    nearest = bert.nearest(bert.graph, *formats)
    _, divergence = bert.judge(nearest)
    assert bert.judge(bert.gptq(nearest))[1] < divergence / 4
    # BERT's norms feed residual sums too: without rescaling these, nothing can be folded
    settings = {"batches": bert.batches}
    _, info = passes.smoothquant_transform_pass(bert.graph, settings)
    assert info["smoothed"] == {}
    smooth = bert.smooth(migration_strength=0.3, rescale_other_readers=True)
    assert bert.judge(smooth)[1] < 1e-8
    assert bert.judge(bert.nearest(smooth, *formats))[1] < divergence * 0.75


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.grows = width_in != width

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.grows:
            quarter = y.shape[1] // 4
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter))
        return F.relu(y + x)


class ResNet20(nn.Module):
    """He et al. 2015, section 4.2, with shortcuts of option A; keys as in the weights' file."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, (width_in, width) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            stride = 1 if stage == 1 else 2
            blocks = [Block(width_in, width, stride), *(Block(width, width, 1) for _ in range(2))]
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return {"logits": self.linear(self.layer3(self.layer2(x)).mean((2, 3)))}


def cifar(path, rows):
    """The first rows of a file, normalized as the weights expect."""
    import pyarrow.parquet
    from PIL import Image

    table = pyarrow.parquet.read_table(path).slice(0, rows).to_pydict()
    images = [np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in table["img"]]
    x = torch.tensor(np.stack(images)).permute(0, 3, 1, 2) / 255
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    pairs = zip(x, table["label"], strict=True)
    return [{"x": (image - mean) / deviation, "label": label} for image, label in pairs]


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.long  # test_conv_bn_fusion.py and the MLP above show both in short
def test_a_real_resnet_is_fused_exactly_and_gptq_saves_it_at_three_bits(data_folder):
    model = ResNet20().eval()
    model.load_state_dict(load_file(data_folder / "resnet-cifar10" / "resnet20.safetensors"))
    folder = data_folder / "cifar10-jpeg"
    splits = {"test": cifar(folder / "test.parquet", 300)}
    splits["train"] = cifar(folder / "train10k.parquet", 128)
    graph = MaseGraph(model, dummy_in={"x": torch.randn(3, 3, 32, 32)})
    fused, info = passes.conv_bn_fusion_transform_pass(graph)
    assert (len(info["fused"]), info["skipped"]) == (19, {})
    resnet = Workload(fused.model, splits, rows=128)
    torch.testing.assert_close(resnet.logits(graph), resnet.exact, atol=1e-4, rtol=1e-4)
    accuracy = resnet.judge(fused)[0]
    formats = Integer(8, "minmax"), Integer(3, "mse")
    nearest = resnet.nearest(resnet.graph, *formats, operators=("linear", "conv2d"))
    assert resnet.judge(nearest)[0] < accuracy - 0.4
    assert resnet.judge(resnet.gptq(nearest))[0] > accuracy - 0.12
