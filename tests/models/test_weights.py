import pytest
import torch
from safetensors.torch import save_file

from chop import MaseGraph
from chop.errors import CheckpointError, ConfigError
from chop.models import get_model
from chop.tools.checkpoint_load import load_model

X = torch.linspace(-1, 1, 32).view(2, 16)


@pytest.fixture
def trained():
    torch.manual_seed(1)
    model = get_model("jsc-tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    return model


def same(model, expected):
    return torch.equal(model(X), expected(X))


def test_a_graph(trained, tmp_path):
    MaseGraph(trained).export(tmp_path / "graph")
    assert same(load_model(tmp_path / "graph.mz"), trained)
    assert same(load_model(str(tmp_path / "graph"), load_type="mz"), trained)


def test_state_dicts_of_torch_safetensors_and_lightning(trained, tmp_path):
    state = trained.state_dict()
    torch.save(state, tmp_path / "a.pt")
    save_file(state, tmp_path / "b.pt")
    lightning = {"epoch": 3, "state_dict": {f"model.{name}": x for name, x in state.items()}}
    torch.save(lightning, tmp_path / "c.ckpt")
    for name, kind in (("a.pt", "pt"), ("b.pt", "pt"), ("c.ckpt", "pl")):
        fresh = get_model("jsc-tiny")
        assert not same(fresh, trained)
        assert load_model(tmp_path / name, kind, fresh) is fresh
        assert same(fresh, trained)


def test_what_goes_wrong_is_said(trained, tmp_path):
    with pytest.raises(ConfigError, match="load_type: got 'zip': choose from: mz, pl, pt"):
        load_model("x", "zip")
    with pytest.raises(ConfigError, match="give model="):
        load_model(tmp_path / "a.pt", "pt")
    with pytest.raises(CheckpointError, match="there is no such file"):
        load_model(tmp_path / "a.pt", "pt", trained)
    (tmp_path / "a.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_model(tmp_path / "a.pt", "pt", trained)
    torch.save({"other": torch.zeros(1)}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="does not fit the model"):
        load_model(tmp_path / "b.pt", "pt", trained)
    for found in (torch.zeros(2), {"state_dict": [1]}):
        torch.save(found, tmp_path / "c.pt")
        with pytest.raises(CheckpointError, match=r"holds a (Tensor|list), expected tensors by"):
            load_model(tmp_path / "c.pt", "pt", trained)


def test_a_pickle_that_would_run_code_is_not_loaded(trained, tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    torch.save(Evil(), tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="holds no weights that can be read"):
        load_model(tmp_path / "evil.pt", "pt", trained)
