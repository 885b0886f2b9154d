"""Saving and loading as steps of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chop.errors import CheckpointError, ConfigError, GraphError
from chop.ir.graph import MaseGraph
from chop.passes.interface.export import export_interface_pass
from chop.passes.interface.graph_files import (
    load_mase_graph_interface_pass,
    save_mase_graph_interface_pass,
)


def test_the_name_of_a_tokenizer_is_no_tokenizer(tmp_path: Path) -> None:
    given = {"to": "gguf", "path": tmp_path / "a.gguf", "tokenizer": "llama"}
    with pytest.raises(ConfigError, match=r"got the name 'llama': pass .*get_tokenizer\('llama'\)"):
        export_interface_pass(MaseGraph(nn.Linear(2, 2)), given)


@pytest.mark.parametrize("wrap", [False, True])
def test_a_saved_graph_is_loaded_again(tmp_path: Path, wrap: bool) -> None:
    mg, folder = MaseGraph(nn.Sequential(nn.Linear(4, 2), nn.ReLU())), tmp_path / "new.v1"
    saving: Any = {"save_dir": str(folder)} if wrap else folder
    same, info = save_mase_graph_interface_pass(mg, saving)
    loading: Any = {"load_dir": str(folder)} if wrap else str(folder)
    again, _ = load_mase_graph_interface_pass(None, loading)
    x = torch.randn(3, 4)
    assert same is mg and torch.equal(again.model(x), mg.model(x))
    assert info["path"].with_name("graph_module.mz").is_file()


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(ConfigError, match="did you mean 'save_dir'"):
        save_mase_graph_interface_pass(mg, {"savedir": "x"})
    with pytest.raises(ConfigError, match="save_dir: expected Path, got nothing"):
        save_mase_graph_interface_pass(mg, {})
    with pytest.raises(GraphError, match="expected a MaseGraph, got Linear"):
        save_mase_graph_interface_pass(nn.Linear(2, 2), "x")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_mase_graph_interface_pass(mg, tmp_path)
