"""The job that shards a model over processes: plans, runs, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from chop import MaseGraph, passes, runs
from chop.actions.shard import run as shard_run
from chop.actions.shard.job import shard
from chop.actions.shard.settings import ShardConfig
from chop.distributed import ShardingPlan
from chop.errors import CheckpointError, ConfigError, DistributedError, PlanError, UnavailableError
from chop.models import load_model
from tests.distributed import cluster

MEGATRON: dict[str, Any] = {"plan": "megatron", "batch": 3, "length": 7}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """Models as Hugging Face saves them, with random weights."""
    import transformers

    root: Path = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    bert = transformers.BertConfig(
        intermediate_size=48, max_position_embeddings=32, initializer_range=0.3, **SIZES
    )
    transformers.BertForSequenceClassification(bert).save_pretrained(root / "bert")
    llama = transformers.LlamaConfig(intermediate_size=48, num_key_value_heads=2, **SIZES)
    transformers.LlamaForCausalLM(llama).save_pretrained(root / "llama")
    return root


def test_a_plan_is_written_with_what_each_process_keeps_and_sends(tmp_path):
    result = shard(ShardConfig(model="mlp", out=tmp_path, **MEGATRON))
    sizes = [x.nbytes for x in load_model("mlp").parameters()]
    assert (result["plan"], result["mesh"], result["size_bytes"]) == ("megatron", "2", sum(sizes))
    # fc1 by columns, fc2 by rows: its bias and fc3 are whole.
    first, first_bias, second, *whole = sizes
    kept = (first + first_bias + second) // 2 + sum(whole)
    assert [row["size_bytes"] for row in result["processes"]] == [kept, kept]
    assert result["replicated_bytes"] == sum(result["replicated"].values()) == sum(whole)
    assert result["collectives"] == [
        {"operation": "all_reduce", "calls": 1, "size_bytes": 4 * 3 * 64}
    ]
    assert result["run"] is result["tp_plan"] is None
    assert json.loads((tmp_path / "result.json").read_text()) == runs.as_json(result)
    assert f"| 1 | {kept / 1000:.1f} |" in (tmp_path / "table.md").read_text()
    manifest = runs.read_manifest(tmp_path)
    assert (manifest.kind, manifest.state, len(manifest.rows)) == ("shard", "finished", 2)
    assert {x.path for x in manifest.artifacts} == {
        *("plan.json", "plans.png", "result.json", "table.md"),
        *("report.html", "report.json"),
    }


@pytest.mark.long
def test_a_plan_that_was_edited_is_taken_with_its_mesh(tmp_path):
    shard(ShardConfig(model="mlp", out=tmp_path, plan="replicate", mesh="2x2"))
    plan = ShardingPlan.read(tmp_path / "plan.json")
    assert (plan.mesh, plan.parameters) == ((2, 2), {})
    ShardingPlan(plan.mesh, {"fc1.weight": ("S0", "S1")}, name="mine").write(tmp_path / "mine.json")
    config = ShardConfig(model="mlp", out=tmp_path, plan=str(tmp_path / "mine.json"))
    result = shard(config)
    assert (result["plan"], result["mesh"], len(result["processes"])) == ("mine", "2x2", 4)
    with pytest.raises(PlanError, match="the plan is for a mesh of 2x2, expected 4"):
        shard(ShardConfig(model="mlp", out=tmp_path, plan=str(tmp_path / "mine.json"), mesh=4))
    assert runs.read_manifest(tmp_path).state == "failed"


@pytest.mark.long
def test_a_folder_is_planned_and_exported_for_transformers(folders, tmp_path):
    from transformers import LlamaConfig

    config = ShardConfig(
        model=str(folders / "llama"), out=tmp_path, export_tp_plan=True, **MEGATRON
    )
    result = shard(config)
    found = json.loads((tmp_path / "tp_plan.json").read_text())
    own = {f"model.{path}": style for path, style in LlamaConfig.base_model_tp_plan.items()}
    assert found == result["tp_plan"] and own.items() <= found.items()
    assert 0.5 < result["largest_share"] < 0.7
    # Attention's output and the MLP's of two layers, for 3 rows of 7 tokens.
    assert result["collectives"] == [
        {"operation": "all_reduce", "calls": 4, "size_bytes": 4 * 4 * 3 * 7 * 32}
    ]


@pytest.mark.long
def test_a_plan_is_searched_for_within_the_memory_of_a_process(tmp_path):
    config = ShardConfig(model="vit", out=tmp_path, memory="190kB", mesh=2)
    result = shard(config)
    rows = {row["plan"]: row for row in result["plans"]}
    assert result["plan"] == "auto" and {"replicate", "data", "rows", "megatron"} <= rows.keys()
    assert rows["auto"]["peak_bytes"] <= 190_000 < rows["replicate"]["peak_bytes"]
    assert max(row["size_bytes"] for row in result["processes"]) == rows["auto"]["kept_bytes"]
    assert sum(row["calls"] for row in result["layers"]) == rows["auto"]["calls"] > 0
    assert [row["layer"] for row in result["layers"]].count("vit.layers.1") == 1
    assert sum(row["seconds"] for row in result["layers"]) == pytest.approx(rows["auto"]["seconds"])
    table = (tmp_path / "table.md").read_text()
    assert "| auto |" in table and "| vit.layers.1 |" in table
    assert (tmp_path / "plans.png").read_bytes().startswith(b"\x89PNG")
    # What is in the file runs as any plan does.
    again = shard(ShardConfig(model="vit", out=tmp_path / "2", plan=str(tmp_path / "plan.json")))
    assert again["predicted"] == result["predicted"]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "mpl"}, UnavailableError, "not a local folder or .*did you mean 'mlp'"),
        ({"model": "net.py:Net"}, ConfigError, r"Export its graph with MaseGraph\(model\)"),
        ({"task": "fill-mask"}, ConfigError, "task: built-in model 'mlp' has its own"),
        ({"plan": "megatorn"}, PlanError, "did you mean 'megatron'"),
        (
            {"mesh": "2x0"},
            PlanError,
            "expected the processes per axis, such as 4 or 2x2, got '2x0'",
        ),
        ({"out": Path(__file__)}, ConfigError, "is a file, expected a folder"),
        ({"plan": ""}, ConfigError, "plan: got an empty text"),
        (
            {"memory": "4 parsecs"},
            PlanError,
            "expected bytes, such as 4GB, 512MiB or 1000000, got '4 p",
        ),
        ({"run": True, "plan_only": True}, ConfigError, "run and plan_only: use only one"),
        (
            {"plan": "replicate", "memory": "1kB"},
            PlanError,
            "needs .* bytes on a process, which has",
        ),
        ({"memory": "1kB"}, PlanError, "no plan on a mesh of 2 fits .* no mesh of up to 1024"),
        ({"bandwidth": -1.0}, PlanError, "bandwidth: expected a number above 0, got -1.0"),
    ],
)
@pytest.mark.sampled(3)
def test_what_does_not_fit_is_refused_in_one_sentence(
    tmp_path, monkeypatch, settings, error, message
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error, match=message) as caught:
        shard(ShardConfig(**{"model": "mlp", "out": tmp_path, **settings}))
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_checkpoint_runs_on_processes_that_are_started_for_it(tmp_path):
    mg = MaseGraph(load_model("mlp"))
    integer = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    quantized, _ = passes.quantize_transform_pass(mg, integer)
    quantized.export(tmp_path / "model")
    config = ShardConfig(model=str(tmp_path / "model.mz"), out=tmp_path / "out", **MEGATRON)
    planned, ran = shard(config), shard(ShardConfig(**{**vars(config), "run": True}))
    assert ran["run"]["backend"] == "gloo"
    assert ran["run"]["local_bytes"] == [row["size_bytes"] for row in planned["processes"]]
    assert 0 < ran["run"]["check"]["nodes"] <= 12
    assert ran["run"]["check"]["final_difference"] == ran["run"]["check"]["max_difference"] == 0
    # Counted in the run, and simulated before.
    assert ran["collectives"] == planned["collectives"] != []
    assert "9 nodes agree with one process" in (tmp_path / "out/table.md").read_text()
    assert runs.read_manifest(tmp_path / "out").settings["run"] is True


def under_torchrun(folder: str, out: str) -> dict[str, Any]:
    return shard(ShardConfig(model=folder, out=Path(out), run=True, memory="75kB"))


@pytest.mark.long
def test_under_torchrun_all_processes_run_it_and_the_first_writes(folders, tmp_path):
    found = cluster.run(under_torchrun, 2, str(folders / "bert"), str(tmp_path))
    written = json.loads((tmp_path / "result.json").read_text())
    assert runs.as_json(found[0]) == written
    assert written["run"]["check"] == found[1]["check"]
    assert found[1]["local_bytes"] == [row["size_bytes"] for row in written["processes"]]
    assert written["run"]["check"]["final_difference"] < 1e-5
    # The first process has searched for the plan, and told the other.
    assert written["plan"] == "auto" and written["collectives"] == written["predicted"] != []
    assert written["largest_share"] < 0.95 and written["run"]["check"]["nodes"] > 50
    assert runs.read_manifest(tmp_path).state == "finished"


def test_torchrun_is_refused_where_one_process_plans(tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun with 2 processes: add --run"):
        shard(ShardConfig(model="mlp", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def said(folder: Path, rank: int, error: Exception, misses_another: bool) -> None:
    entry = {"class": type(error).__name__, "message": str(error), "misses_another": misses_another}
    (folder / f"error-{rank}.json").write_text(json.dumps(entry))


def test_of_several_errors_the_cause_is_raised(tmp_path):
    assert "ended with exit code 137" in str(shard_run._read_error(tmp_path, 137, 2))
    said(tmp_path, 0, DistributedError("another process ended"), True)
    assert isinstance(shard_run._read_error(tmp_path, 137, 2), DistributedError)
    said(tmp_path, 1, CheckpointError("a shard is missing"), False)
    found = shard_run._read_error(tmp_path, 2, 2)
    assert isinstance(found, CheckpointError) and str(found) == "a shard is missing"


def test_a_process_leaves_its_error_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
    ShardingPlan((2,)).write(tmp_path / "plan.json")
    settings = {"model": "mlp", "plan": str(tmp_path / "plan.json"), "backend": "gloo"}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "modules.json").write_text("[]")
    assert shard_run.run_from(tmp_path) == shard_run.FAILED
    found = shard_run._read_error(tmp_path, shard_run.FAILED, 2)
    assert isinstance(found, PlanError) and not (tmp_path / "result.json").exists()


@pytest.mark.long
def test_an_interrupted_run_says_that_nothing_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_run, "launch", lambda command, processes: shard_run.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt) as caught:
        shard(ShardConfig(model="mlp", out=tmp_path, run=True))
    assert caught.value.__notes__[0].startswith("no results were saved in")
    assert runs.read_manifest(tmp_path).state == "interrupted"
    assert not (tmp_path / "plan.json").exists()
