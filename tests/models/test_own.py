"""Models in files of the user's own that cannot be built, or whose weights cannot be read."""

import sys

import pytest
import torch

from chop.errors import CheckpointError, ConfigError
from chop.ir.graph import MaseGraph
from chop.models import load_model
from chop.models.weights import load_weights
from tests.unprivileged import NEEDS_ROOT, as_nobody

HEAD = "import sys\nfrom torch import nn\nimport blocks_of_net\n"
BLOCKS = "from torch import nn\ndef block(n):\n    return nn.Linear(n, -1)\n"
BROKEN = [
    ("class Net(nn.Module):\n    def __init__(self):\n        self.a = nn.Linear(1, 1)", "Net",
     "line 6, in Net.__init__, raises AttributeError: cannot assign module before"),
    ("class Inner(nn.Module):\n    def __init__(self):\n        raise ValueError('depth.')\n"
     "def make():\n    return Inner()", "make",
     r"line 6, in Inner.__init__, raises ValueError: depth\.$"),
    ("class Net(nn.Module):\n    def __init__(self):\n        assert False", "Net",
     r"line 6, in Net.__init__, raises AssertionError\.$"),
    ("def make():\n    sys.exit('no GPU')", "make", "line 5, in make, raises SystemExit: no GPU"),
    ("def make():\n    return blocks_of_net.block(3)", "make",
     "line 3 of 'blocks_of_net.py', in block, raises RuntimeError: .*negative"),
    ("class Net(nn.Module):\n    def __init__(self, num_classes):\n        1 // 0", "Net",
     "line 6, in Net.__init__, raises ZeroDivisionError: "),
    ("x = 1\ny = x / 0", "y", "'.*net.py' cannot be run: line 5 raises ZeroDivisionError: "),
    ("sys.exit(3)", "Net", "cannot be run: line 4 raises SystemExit: 3"),
    ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--a', required=True)\n"
     "p.parse_args()", "Net", "line 7 raises SystemExit: 2. It reads the command line, which"),
    ("x = {}[sys.argv[0]]", "Net", "line 4 raises KeyError: .* It reads the command line"),
    ("make = dict", "make", "expected a torch.nn.Module, got dict"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "name", "told"), BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("relative", [False, True])
def test_code_that_raises_is_one_sentence_with_its_line(
    body, name, told, relative, tmp_path, monkeypatch
):
    (tmp_path / "net.py").write_text(HEAD + body)
    (tmp_path / "blocks_of_net.py").write_text(BLOCKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "blocks_of_net", raising=False)
    file = "net.py" if relative else tmp_path / "net.py"
    with pytest.raises(ConfigError, match=told):
        load_model(f"{file}:{name}", num_labels=2)


@NEEDS_ROOT
def test_weights_without_the_right_to_read_are_one_sentence(open_to_all):
    model = torch.nn.Linear(2, 2)
    torch.save(model.state_dict(), open_to_all / "a.pt")
    MaseGraph(model, dummy_in={"input": torch.ones(1, 2)}).export(open_to_all / "graph")
    (open_to_all / "closed").mkdir()
    (open_to_all / "closed" / "b.pt").touch()
    for path in (open_to_all / "a.pt", open_to_all / "graph.pt", open_to_all / "closed"):
        path.chmod(0o600)

    def told(read):
        try:
            read()
        except CheckpointError as error:
            return str(error)
        return "nothing"

    def answers():
        graph = open_to_all / "graph"
        files = (open_to_all / "a.pt", open_to_all / "closed" / "b.pt")
        first = [told(lambda file=file: load_weights(model, file)) for file in files]
        return [*first, told(lambda: MaseGraph.from_checkpoint(graph))]

    pt, closed, graph = as_nobody(answers)
    assert f"'{open_to_all}/a.pt' cannot be read: Permission denied" in pt
    assert f"'{open_to_all}/closed/b.pt' cannot be read: Permission denied" in closed
    assert "graph.pt' cannot be read: Permission denied" in graph
