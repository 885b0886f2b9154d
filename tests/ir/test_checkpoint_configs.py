"""Configurations come back as they were, whatever `transformers` now thinks of them."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, BertConfig, PretrainedConfig, SmolVLMConfig

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from tests.ir.checkpoint_cases import edit, reload


class Configured(nn.Module):
    """A model that has a configuration and does not need it to compute."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.config = config
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def stored(config: Any) -> MaseGraph:
    return MaseGraph(Configured(config), dummy_in={"x": torch.ones(3, 2)})


@pytest.mark.parametrize("model_type", ["gemma4_unified_text", "laguna", "qwen2"])
def test_settings_that_transformers_would_refuse_do_not_stop_a_graph(
    tmp_path: Path, model_type: str
) -> None:
    config = CONFIG_MAPPING[model_type]()
    config.num_hidden_layers = 2  # of which `layer_types` knows nothing
    with pytest.raises(Exception, match="layer"):
        type(config).from_dict(config.to_dict())
    mg = stored(config)
    again = reload(mg, tmp_path)
    x = torch.randn(3, 2)
    assert torch.equal(again.model(x), mg.model(x))
    assert type(again.model.config) is type(config)
    assert vars(again.model.config) == vars(config)
    assert again.model.layer.config is again.model.config


def test_configurations_inside_a_configuration_stay_shared_and_exact(tmp_path: Path) -> None:
    config = SmolVLMConfig()
    config._attn_implementation = "eager"
    config.text_config.sizes = (1, (2, 3))
    config.text_config.dtype = torch.bfloat16
    mg = stored(config)
    mg.model.layer.config = config.text_config
    again = reload(mg, tmp_path).model
    assert again.layer.config is again.config.text_config
    assert vars(again.config.text_config) == vars(config.text_config)
    assert again.config.to_dict() == config.to_dict()
    assert again.config.vision_config._attn_implementation == "eager"
    assert copy.deepcopy(again.config).to_dict() == config.to_dict()


def test_settings_build_nothing_and_choose_no_code(tmp_path: Path) -> None:
    stored(CONFIG_MAPPING["qwen2"]()).export(tmp_path / "graph")

    def change(document: Any) -> None:
        document["configs"][0]["attention"] = "someone/kernel"
        document["configs"][0]["experts"] = "someone/kernel"
        attributes = document["configs"][0]["attributes"]
        attributes["num_hidden_layers"] = 2_000_000_000
        attributes["_attn_implementation_internal"] = "someone/kernel"
        del attributes["layer_types"]

    edit(tmp_path, change)
    start = time.process_time()
    config = MaseGraph.from_checkpoint(tmp_path / "graph").model.config
    assert time.process_time() - start < 5
    assert config.num_hidden_layers == 2_000_000_000
    assert config._attn_implementation is None and config._experts_implementation is None


@pytest.mark.parametrize("name", ["__class__", "a b", "__dict__"])
def test_odd_settings_are_refused(tmp_path: Path, name: str) -> None:
    stored(BertConfig()).export(tmp_path / "graph")
    edit(tmp_path, lambda document: document["configs"][0]["attributes"].update({name: 1}))
    with pytest.raises(CheckpointError, match="invalid setting"):
        MaseGraph.from_checkpoint(tmp_path / "graph")


def test_a_class_that_is_not_there_is_replaced_and_said(tmp_path: Path) -> None:
    stored(BertConfig(hidden_size=24)).export(tmp_path / "graph")

    def change(document: Any) -> None:
        document["configs"][0]["class"] = "transformers.models.soon.configuration_soon:SoonConfig"
        document["configs"][0]["model_type"] = "soon"

    edit(tmp_path, change)
    with pytest.warns(UserWarning, match="SoonConfig' is missing.*plain PretrainedConfig"):
        config = MaseGraph.from_checkpoint(tmp_path / "graph").model.config
    assert type(config) is PretrainedConfig and config.hidden_size == 24
    edit(tmp_path, lambda document: document["configs"][0].update({"class": "os:system"}))
    with pytest.warns(UserWarning, match="'os:system' is missing"):
        assert MaseGraph.from_checkpoint(tmp_path / "graph").model.config.hidden_size == 24
