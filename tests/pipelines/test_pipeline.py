import json
import signal
import textwrap
import time

import pytest
import torch

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError
from chop.models import get_model
from chop.pipelines import Pipeline
from chop.pipelines.stages import findings_as_json
from chop.runs import read_manifest
from tests import programs

INTEGER = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
QUANTIZE = ("quantize_transform_pass", {"by": "type", "linear": INTEGER})
PRUNE = ("prune_transform_pass", {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
BITS = "calculate_avg_bits_mg_analysis_pass"
X = torch.linspace(-2, 2, 3 * 64).view(3, 1, 8, 8)


@pytest.fixture
def mg():
    return MaseGraph(get_model("toy-tiny"))


def counting(calls, name="count_analysis_pass"):
    def run(mg, pass_args={}):  # noqa: B006
        calls.append(name)
        return mg, {"calls": len(calls)}

    run.__name__ = name
    return run


def test_stages_run_in_order_and_the_graph_that_came_stays(mg):
    before = mg.model(X)
    small, found = Pipeline([QUANTIZE, BITS, PRUNE, BITS])(mg, quiet=True)
    assert list(found) == ["quantize_transform_pass", BITS, "prune_transform_pass", f"{BITS}_2"]
    assert found[BITS]["w_avg_bit"] == pytest.approx(8, abs=0.5)
    assert torch.equal(mg.model(X), before)
    assert not mg.provenance
    by_hand, _ = passes.init_metadata_analysis_pass(mg)
    by_hand, _ = passes.add_common_metadata_analysis_pass(by_hand)
    by_hand, _ = passes.quantize_transform_pass(by_hand, QUANTIZE[1])
    by_hand, _ = passes.prune_transform_pass(by_hand, PRUNE[1])
    assert torch.equal(small.model(X), by_hand.model(X))


def test_a_finished_list_is_read_and_not_run_again(mg, tmp_path, capsys):
    calls = []
    stages = [QUANTIZE, counting(calls), PRUNE]
    first, found = Pipeline(stages)(mg, out=tmp_path / "run")
    assert "[2/3] count_analysis_pass: " in capsys.readouterr().out
    again, refound = Pipeline(stages)(MaseGraph(get_model("toy-tiny")), out=tmp_path / "run")
    assert "3 of 3 stages are done: continuing" in capsys.readouterr().out
    assert calls == ["count_analysis_pass"]
    assert torch.equal(again.model(X), first.model(X))
    assert refound["count_analysis_pass"] == {"calls": 1} == found["count_analysis_pass"]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names[:2] == [f"01_quantize_transform_pass.{kind}" for kind in ("mz", "pt")]
    assert len(names) == 8 and names[-2:] == ["manifest.json", "stages.jsonl"]


def test_a_manifest_has_the_stages_their_settings_and_files(mg, tmp_path):
    batches = [{"x": X}]
    stages = [QUANTIZE, (counting([]), {"batches": batches}), PRUNE]
    Pipeline(stages)(mg, out=tmp_path, quiet=True)
    manifest = read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("pipeline", "finished")
    quantize, count, prune = manifest.settings["stages"]
    assert quantize == {"pass": "quantize_transform_pass", "config": QUANTIZE[1]}
    assert count["config"] == {"batches": [{"x": f"tensor {tuple(X.shape)} torch.float32"}]}
    assert [row["stage"] for row in manifest.rows] == [
        step["pass"] for step in (quantize, count, prune)
    ]
    assert all(row["seconds"] > 0 for row in manifest.rows)
    files = {artifact.path for artifact in manifest.artifacts}
    assert files == {path.name for path in tmp_path.iterdir()} - {"manifest.json"}
    with pytest.raises(ValueError, match="no such layer"):
        Pipeline([QUANTIZE, failing_analysis_pass])(mg, out=tmp_path, quiet=True)
    failed = read_manifest(tmp_path)
    assert failed.state == "failed" and "no such layer" in failed.error
    assert failed.last_finished == manifest


def failing_analysis_pass(mg, pass_args=None):
    raise ValueError("no such layer")


def test_a_changed_stage_runs_again_and_all_after_it(mg, tmp_path):
    calls = []
    a, b, c = (counting(calls, f"{name}_analysis_pass") for name in "abc")
    Pipeline([a, (b, {"k": 1}), c])(mg, out=tmp_path, quiet=True)
    Pipeline([a, (b, {"k": 2}), c])(mg, out=tmp_path, quiet=True)
    assert [call[0] for call in calls] == list("abcbc")
    Pipeline([a, (b, {"k": 2}), c])(mg, out=tmp_path, quiet=True)
    assert len(calls) == 5
    other = MaseGraph(get_model("toy-tiny", seed=1))
    Pipeline([a, (b, {"k": 2}), c])(other, out=tmp_path, quiet=True)
    assert [call[0] for call in calls[5:]] == list("abc")
    other.model.requires_grad_(False)
    frozen, _ = Pipeline([a, (b, {"k": 2}), c])(other, out=tmp_path, quiet=True)
    assert not any(p.requires_grad for p in frozen.model.parameters())


def test_settings_are_compared_by_content(mg, tmp_path):
    calls = []
    run = counting(calls)
    for tensor in (torch.zeros(2000), torch.zeros(2000)):
        Pipeline([(run, {"x": tensor, "k": (1, {"a": None})})])(mg, out=tmp_path, quiet=True)
    assert len(calls) == 1
    changed = torch.zeros(2000)
    changed[1000] = 1  # not in the tensor's text
    Pipeline([(run, {"x": changed, "k": (1, {"a": None})})])(mg, out=tmp_path, quiet=True)
    assert len(calls) == 2
    for _ in range(2):  # a generator has no content to compare
        Pipeline([(run, {"x": iter(())})])(mg, out=tmp_path, quiet=True)
    assert len(calls) == 4


def test_measured_statistics_are_there_after_a_resume(mg, tmp_path):
    settings = {
        "target_weight_nodes": ["linear"],
        "weight_statistics": {"range_min_max": {"dims": [0]}, "variance_precise": {}},
        "quiet": True,
    }
    stages = [("profile_statistics_analysis_pass", settings), BITS]
    first, _ = Pipeline(stages)(mg, out=tmp_path, quiet=True)
    again, found = Pipeline(stages)(mg, out=tmp_path, quiet=True)
    measured = found["profile_statistics_analysis_pass"]["statistics"]
    assert len(measured["seq_blocks_0"]["args"]["weight"]["range_min_max"]["max"]) == 64
    for node, resumed in zip(first.nodes, again.nodes, strict=True):
        torch.testing.assert_close(
            dict(resumed.meta["mase"].software), dict(node.meta["mase"].software), rtol=0, atol=0
        )
    noted = [node.meta["mase"]["software"].get("args") for node in again.nodes]
    stats = [entry["weight"]["stat"] for entry in noted if entry]
    assert [stat["range_min_max"]["max"].shape for stat in stats] == [(64,), (4,), (4,)]


def test_a_broken_checkpoint_is_made_again(mg, tmp_path, caplog):
    calls = []
    stages = [counting(calls, "a_analysis_pass"), counting(calls, "b_analysis_pass")]
    Pipeline(stages)(mg, out=tmp_path, quiet=True)
    (tmp_path / "02_b_analysis_pass.pt").write_bytes(b"cut off")
    Pipeline(stages)(mg, out=tmp_path, quiet=True)
    assert calls == ["a_analysis_pass", "b_analysis_pass", "b_analysis_pass"]
    assert "stage 2 runs again" in caplog.text
    journal = tmp_path / "stages.jsonl"
    journal.write_text(journal.read_text().replace('"stage": "01_a', '"stage": "'))
    Pipeline(stages)(mg, out=tmp_path, quiet=True)
    assert len(calls) == 5


@pytest.mark.parametrize("done", range(1, 6))
@pytest.mark.sampled(1)
def test_every_place_to_continue_from_gives_the_same_model(mg, tmp_path, done):
    pruning = {"sparsity": 0.5, "method": "l1-norm"}
    stages = [
        ("prune_transform_pass", {"weight": pruning, "activation": {"sparsity": 0.1}}),
        ("quantize_transform_pass", {"linear": {"config": {"name": "mxint", "width": 6}}}),
        ("insert_lora_adapter_transform_pass", {"rank": 2, "alpha": 4}),
        "fuse_lora_weights_transform_pass",
        "prune_detach_hook_transform_pass",
    ]
    whole, found = Pipeline(stages)(mg, quiet=True)
    Pipeline(stages[:done])(mg, out=tmp_path, quiet=True)
    resumed, refound = Pipeline(stages)(mg, out=tmp_path, quiet=True)
    assert torch.equal(resumed.model(X), whole.model(X))
    assert list(refound) == list(found) and resumed.provenance == whole.provenance
    assert not torch.equal(whole.model(X), mg.model(X))


SCRIPT = """
    import signal, sys
    from pathlib import Path
    from chop import MaseGraph
    from chop.models import get_model
    from chop.pipelines import Pipeline

    def slow_analysis_pass(mg, pass_args={}):
        if sys.argv[2] == "die":
            (Path(sys.argv[1]).parent / "waiting").touch()
            signal.pause()
        return mg, {"ran": True}

    integer = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    stages = [
        ("quantize_transform_pass", {"by": "type", "linear": integer}),
        "calculate_avg_bits_mg_analysis_pass",
        slow_analysis_pass,
    ]
    mg, found = Pipeline(stages)(MaseGraph(get_model("toy-tiny")), out=sys.argv[1])
    print(sorted(found), found["calculate_avg_bits_mg_analysis_pass"]["w_avg_bit"])
"""


def test_a_killed_run_continues(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with programs.started(script, tmp_path / "run", "die") as process:
        while process.is_alive() and not (tmp_path / "waiting").exists():
            time.sleep(0.01)
    assert process.exitcode == -signal.SIGKILL
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    assert len(written) == 6
    done = programs.run(script, tmp_path / "run", "live")
    assert done.returncode == 0, done.stderr
    assert "2 of 3 stages are done: continuing" in done.stdout
    assert "[3/3] slow_analysis_pass" in done.stdout and "[2/3]" not in done.stdout
    later = {path.name for path, when in written.items() if path.stat().st_mtime_ns != when}
    assert later == {"manifest.json", "stages.jsonl"}
    _, found = Pipeline([QUANTIZE, BITS])(MaseGraph(get_model("toy-tiny")), quiet=True)
    names = sorted([*found, "slow_analysis_pass"])
    assert done.stdout.splitlines()[-1] == f"{names} {found[BITS]['w_avg_bit']}"


def test_a_list_is_read_from_toml(mg, tmp_path):
    path = tmp_path / "list.toml"
    path.write_text(
        '[[stage]]\npass = "quantize_transform_pass"\nconfig.by = "type"\n'
        '[stage.config.linear.config]\nname = "integer"\nwidth = 8\nfrac_width = 5\n'
        f'[[stage]]\npass = "{BITS}"\n'
    )
    _, found = Pipeline.from_toml(path)(mg, quiet=True)
    assert found["quantize_transform_pass"] == {"quantized": 3}
    assert found[BITS]["w_avg_bit"] < 9
    for text, message in (
        ('[[stage]]\npas = "x"\n', "stage 1: unknown key 'pas': did you mean 'pass'"),
        ('[[stages]]\npass = "x"\n', "unknown key 'stages': did you mean 'stage'"),
        ("[[stage]]\nconfig = {}\n", "stage 1 names no pass"),
        ('[stage]\npass = "x"\n', r"expected tables \[\[stage\]\]"),
        ("", r"expected tables \[\[stage\]\]"),
        ('[[stage]]\npass = "quantze_transform_pass"\n', "did you mean 'quantize_transform_pass'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            Pipeline.from_toml(path)


def test_a_model_is_no_graph():
    with pytest.raises(GraphError, match="Pipeline: expected a MaseGraph, got MLP"):
        Pipeline([BITS])(get_model("toy-tiny"))


def test_findings_become_plain_json():
    findings = {
        1: float("nan"),
        "t": torch.tensor(2.5),
        "m": torch.tensor([[0.5, -torch.inf], [2, 3]]),
        "l": torch.zeros(200, 300),
        "s": (1, None, True),
        "o": object(),
    }
    plain = findings_as_json(findings)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["1"] is None and plain["t"] == 2.5 and plain["s"] == [1, None, True]
    assert plain["m"] == [[0.5, None], [2, 3]] and plain["o"] == "object"
    assert plain["l"] == "tensor (200, 300) torch.float32"
