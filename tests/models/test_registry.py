"""Models by MASE's names, with weights from files, and models of the user's own."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop import MaseGraph
from chop.data import get_dataset_info
from chop.errors import CheckpointError, ConfigError
from chop.models import (
    MODELS,
    ModelFactory,
    ToyConvNet,
    ToyCustomFnNet,
    ToyNet,
    get_model,
    get_model_info,
    register_mase_checkpoint,
    register_mase_model,
)
from chop.models.catalogue import _ROWS_BY_NAME

DIGITS = get_dataset_info("digits")


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_weights_come_from_a_file(tmp_path, suffix):
    trained = get_model("toy", dataset_info=DIGITS, seed=3)
    path = tmp_path / f"weights.{suffix}"
    (torch.save if suffix == "pt" else save_file)(trained.state_dict(), path)
    model = get_model("toy", dataset_info=DIGITS, checkpoint=path)
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model(x), trained(x)) and not model.training
    assert torch.equal(
        get_model(name="toy", dataset_info=DIGITS, checkpoint=str(path))(x), trained(x)
    )
    with pytest.raises(CheckpointError, match="does not fit the model"):
        get_model("toy", checkpoint=path)
    with pytest.raises(ConfigError, match="there is no weight file for 'toy'"):
        get_model("toy", checkpoint=tmp_path / "none.pt")


def test_the_name_may_be_called_checkpoint(tmp_path):
    first, second = get_model("toy"), get_model(checkpoint="toy", pretrained=False)
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    with pytest.raises(ConfigError, match="expected the name of a model"):
        get_model()
    folder = tmp_path / "bert"
    get_model("prajjwal1/bert-tiny", seed=5).save_pretrained(folder)
    read = get_model("bert-base-uncased", pretrained=True, checkpoint=folder)
    assert read.config.hidden_size == 128


def test_toys():
    assert isinstance(get_model("toy"), ToyNet) and isinstance(get_model("toy_convnet"), ToyConvNet)
    assert get_model_info("vgg7_cifar") is get_model_info("vgg7")
    for model in (
        ToyNet((1, 8, 8), 4),
        ToyConvNet(4, channels=(1, 2, 3, 4, 5), side=8),
        ToyCustomFnNet(image_size=(1, 8, 8), num_classes=4),
    ):
        x = torch.randn(3, 1, 8, 8)
        expected = model(x)
        assert expected.shape == (3, 4)
        mg = MaseGraph(model, dummy_in={"x": torch.randn(2, 1, 8, 8)})
        assert torch.equal(mg.model(x), expected)
    assert [type(layer).__name__ for layer in ToyNet((1, 8, 8), 4).seq_blocks] == [
        "Linear",
        "ReLU",
        "Linear",
        "ReLU",
        "Linear",
    ]


@pytest.fixture
def clean():
    yield
    for table in (MODELS, ModelFactory._model_cls_dict, ModelFactory._checkpoint_getter_dict):
        for name in [name for name in table if name.startswith("mine")]:
            del table[name]
    for name in [name for name in _ROWS_BY_NAME if name.startswith("mine")]:
        del _ROWS_BY_NAME[name]


def test_a_model_of_ones_own(clean):
    @register_mase_model(
        "mine", checkpoints=["mine_a", "mine_b"], task_type="vision", image_classification=True
    )
    class Mine(nn.Module):
        def __init__(self, features, classes):
            super().__init__()
            self.fc = nn.Linear(features, classes)

        def forward(self, x):
            return self.fc(x.flatten(1))

    @register_mase_checkpoint("mine_a")
    def get_mine(pretrained=False, **kwargs):
        info = kwargs["dataset_info"]
        return Mine(torch.Size(info.image_size).numel(), info.num_classes)

    model = get_model("mine_a", pretrained=False, dataset_info=DIGITS)
    assert isinstance(model, Mine) and model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert get_model_info("mine_b").is_vision_model
    assert ModelFactory._model_info_dict["mine_a"].name == "mine_a"
    with pytest.raises(ConfigError, match="'mine_b' is registered without a constructor"):
        get_model("mine_b")
    with pytest.raises(ConfigError, match="'toy' is already in the catalogue"):
        register_mase_model("toy")(Mine)
    with pytest.raises(ConfigError, match="task_type: got 'visoin': did you mean 'vision'"):
        register_mase_model("mine_c", task_type="visoin")
