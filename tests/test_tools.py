import logging

import pytest
import torch
from rich.logging import RichHandler
from torch import nn

import chop.data
import chop.train
from chop import MaseGraph, tools
from chop.errors import ConfigError
from chop.models import get_model, get_model_info, load_model
from chop.tools.logger import get_logger, set_logging_verbosity
from chop.tools.utils import deepgetattr, deepsetattr


def test_the_names_are_those_of_the_rooms():
    assert tools.get_tokenized_dataset is chop.data.get_tokenized_dataset
    assert tools.get_trainer is chop.train.get_trainer
    assert tools.deepsetattr is deepsetattr and tools.get_logger is get_logger


def test_a_dummy_input_fits_the_model():
    model = load_model("bert-tiny")
    assert model(**tools.get_hf_dummy_in(model)).logits.shape[-1] == 2


def test_a_layer_is_swapped_by_its_path():
    model = load_model("bert-tiny")
    path = "bert.encoder.layer.1.output.dense"
    new = nn.Linear(512, 128)
    deepsetattr(model, path, new)
    assert deepgetattr(model, path) is new
    assert model.bert.encoder.layer[1].output.dense is new
    assert "bert.encoder.layer.1.output.dense.weight" in model.state_dict()


def test_a_missing_path_gives_the_default_or_a_hint():
    model = load_model("mlp")
    assert deepgetattr(model, "fc9.weight") is None
    assert deepgetattr(model, "fc9.weight", default=3) == 3
    with pytest.raises(ConfigError, match=r"'DigitsMLP' has no 'fc9': did you mean 'fc"):
        deepsetattr(model, "fc9.weight", torch.zeros(1))
    deep = load_model("bert-tiny")
    with pytest.raises(ConfigError, match=r"'bert.encoder' has no 'layers': did you mean 'layer'"):
        deepsetattr(deep, "bert.encoder.layers.0.output", None)


def test_loggers_share_one_handler_and_one_level():
    first, second = get_logger("mine"), get_logger("chop.passes.mine")
    assert first.name == "chop.mine" and second.name == "chop.passes.mine"
    # Test runners add handlers of their own.
    ours = [h for h in logging.getLogger("chop").handlers if isinstance(h, RichHandler)]
    assert len(ours) == 1
    assert first.handlers == [] == second.handlers
    before = logging.getLogger("chop").level
    try:
        set_logging_verbosity("Debug")
        assert first.isEnabledFor(logging.DEBUG) and second.isEnabledFor(logging.DEBUG)
        set_logging_verbosity(logging.ERROR)
        assert not first.isEnabledFor(logging.WARNING)
    finally:
        set_logging_verbosity(before)
    with pytest.raises(ConfigError, match="unknown logging level 'debgu': did you mean 'debug'"):
        set_logging_verbosity("debgu")


def test_a_toml_file_is_read_as_mase_reads_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[passes.quantize]\nby = "type"\nsizes = ["NA", 2]\n[passes.quantize.a]\nb = "NA"\n'
    )
    config = tools.load_config(file)
    assert config["passes"]["quantize"] == {"by": "type", "sizes": [None, 2], "a": {"b": None}}
    with pytest.raises(ConfigError, match="does not exist"):
        tools.load_config(tmp_path / "none.toml")


def test_the_root_logger_is_the_one_of_all():
    assert tools.root_logger is logging.getLogger("chop") is get_logger("chop")
    with pytest.raises(AttributeError, match="no attribute 'rot_logger'"):
        tools.rot_logger  # noqa: B018


def test_tensors_and_arrays():
    layer = nn.Linear(3, 2)
    tools.copy_weights(torch.ones(2, 3), layer.weight)
    assert layer.weight.eq(1).all() and layer.weight.requires_grad
    with pytest.raises(ConfigError, match=r"shape \[5\] into \[2, 3\]"):
        tools.copy_weights(torch.ones(5), layer.weight)
    array = tools.to_numpy(layer.weight)
    assert array.tolist() == [[1.0] * 3] * 2
    assert tools.to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == "float32"
    assert tools.is_tensor(tools.to_tensor(array)) and not tools.is_tensor(array)
    assert tools.to_numpy_if_tensor("text") == tools.to_tensor_if_numpy("text") == "text"


def test_arguments_to_fix_at_capture():
    model = get_model("prajjwal1/bert-tiny")
    info = get_model_info("prajjwal1/bert-tiny")
    fixed = tools.get_cf_args(info, "cls", model)
    assert fixed["token_type_ids"] is None and not {"input_ids", "labels"} & fixed.keys()
    mg = MaseGraph(model, cf_args=fixed)
    inputs = [node.name for node in mg.nodes if node.op == "placeholder"]
    assert inputs == ["input_ids", "attention_mask"]
    assert tools.get_cf_args(get_model_info("toy"), "cls", get_model("toy")) == {}
    with pytest.raises(ConfigError, match="task: got 'clss': did you mean 'cls'"):
        tools.get_cf_args(info, "clss", model)
