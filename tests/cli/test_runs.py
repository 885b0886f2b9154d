"""Folders of runs as arguments, and advice that can be pasted into a shell."""

import json
import re
import shlex
import shutil
from dataclasses import asdict

import pytest
import torch

from chop.actions.bench.job import bench_model
from chop.actions.bench.latency import no_gain
from chop.actions.bench.settings import BenchModelConfig
from chop.actions.bench.ways import COMMANDS, bench_command, in_folder
from chop.actions.compress.earlier_run import compressed_run, workload_config
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.described_run import describe_run
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.evaluate.models import load_judged
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.export.settings import ExportConfig
from chop.actions.starting_run import check_saved_model, config_of_run
from chop.actions.sweep.settings import PruneSweepConfig
from chop.base.notices import collected_assumptions
from chop.base.trust import trust_code
from chop.cli import main
from chop.errors import CheckpointError, ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import find_checkpoint
from chop.runs import MANIFEST, Artifact
from tests import programs
from tests.cli.test_adapter import COMMANDS as CLI
from tests.cli.test_shown_commands import parse, words_of

NAME = "my runs; it's"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a compressed model in a folder whose name a shell has to quote."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {"qat_epochs": 0, "bench_seconds": 0.0, "keep_best": True}
    compress(CompressConfig(model="mlp", out=folder / NAME, formats=("4.auto",), **settings))
    return folder


@pytest.fixture
def ends(monkeypatch, capsys, place):
    """Runs a command in the folder: its exit code, what it printed, and its messages."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["chop", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


def pasted(line):
    """The command that a shell reads in a line, checked by its options."""
    found = words_of(shlex.join(shlex.split(line)[1:]))
    assert found is not None and parse(*found)
    return found


def test_every_command_that_goes_on_from_a_run_takes_it_as_its_argument():
    taken = {"bench model", "compress", "emit", "evaluate", "export", "lower", "report", "shard"}
    taken |= {"search show", "search resume", "search export", "search compare", "sweep prune"}
    for name in taken:
        first = CLI[name].params[0]
        assert first.param_type_name == "argument", name
        parse(name, ["runs/a", *(["--to", "onnx"] if name == "export" else [])])


def test_compress_says_what_a_folder_holds(ends, place):
    code, printed, messages = ends("compress", NAME)
    assert code == 0 and messages == ""
    assert printed.startswith(f"{NAME}: chop compress, mlp; finished.\nsaved integer 4.auto (PTQ)")
    assert "model.pt" in printed and "report.html" in printed
    commands = [line.strip() for line in printed.splitlines() if line.startswith("  chop ")]
    found = {pasted(line)[0]: pasted(line)[1] for line in commands}
    assert found.keys() == {"evaluate", "bench model", "export", "report"}
    assert all(words[0] == NAME for words in found.values())
    before = (place / NAME / "manifest.json").read_bytes()
    code, printed, _ = ends("compress", NAME, "--json")
    assert json.loads(printed)["result"]["kind"] == "compress" and code == 0
    assert (place / NAME / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    "options", [["--formats", "8.auto", "--formats", "mxint8"], ["--config", "x.toml"], ["--onnx"]]
)
def test_compress_takes_a_run_alone(options, ends):
    code, printed, messages = ends("compress", NAME, *options)
    assert code == 2 and printed == ""
    again = f"chop compress --model mlp --out {shlex.quote(f'{NAME}-2')} {shlex.join(options)}"
    refusal = (
        f"'{NAME}' describes an earlier run: leave out {options[0]}; or compress its model again"
    )
    assert f"{refusal} with {again}." in messages
    pasted(again)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["digits", "--model", "cnn"], "or write an option before 'digits', such as --dataset dig"),
        (["x", "--model", "cnn", "--dataset", "digits"], "leave out --model, --dataset; or leave"),
        (["cnn", "--formats", "8.auto"], "leave out --formats; or pass a model with --model cnn"),
    ],
)
def test_a_word_that_is_no_run_gets_advice(words, advice, ends):
    code, _, messages = ends("compress", *words)
    assert code == 2 and advice in messages


def test_runs_of_other_commands_are_described_too(tmp_path, ends):
    lower(LowerConfig(model="mlp", out=tmp_path / "-low", rows=8, limit=64, calibration_rows=16))
    found = describe_run(tmp_path / "-low")
    assert (found.kind, found.state, found.settings["model"]) == ("lower", "finished", "mlp")
    assert found.next == (f"chop report {tmp_path}/-low --open",)
    with pytest.raises(CheckpointError, match="expected the output folder of a chop command"):
        describe_run(tmp_path)


def test_a_run_that_saved_no_model_names_no_command_for_one(tmp_path):
    settings = {"qat_epochs": 0, "bench_seconds": 0.0, "max_drop": 0.0, "limit": 300}
    compress(CompressConfig(model="mlp", out=tmp_path, formats=("2.1",), **settings))
    assert [line.split()[1] for line in describe_run(tmp_path).next] == ["report"]
    for job in (lower, bench_model):
        config = LowerConfig if job is lower else BenchModelConfig
        name = "start_from" if job is lower else "compressed"
        with pytest.raises(CheckpointError, match="saved no model"):
            job(config(**{name: tmp_path, "out": tmp_path / "out"}))


def test_lower_keeps_the_formats_and_weights_of_a_run(place, tmp_path):
    found = lower(LowerConfig(start_from=place / NAME, out=tmp_path, rows=360))
    assert found["config"]["model"] == "mlp" and NAME in found["format"]
    saved = MaseGraph.from_checkpoint(place / NAME / "model")
    integer = MaseGraph.from_checkpoint(tmp_path / "model")
    for name in ("fc1", "fc2", "fc3"):
        module = saved.model.get_submodule(name)
        codes = integer.model.get_submodule(name).weight
        assert module.spec.weight.width == 4 and codes.abs().max() <= 8
        assert torch.equal(codes * 2.0**-module.spec.weight.frac_width, module.weight)
    result = json.loads((place / NAME / "result.json").read_text())
    # Operators between the layers are rounded, too.
    assert found["accuracy"]["quantized"] == pytest.approx(result["saved"]["accuracy"], abs=0.03)


def test_lower_of_a_run_reads_its_rows_and_refuses_others(place, ends):
    code, _, messages = ends("lower", NAME, "--model", "cnn")
    assert code == 2 and f"--model cnn: '{NAME}' used mlp; leave --model out" in messages
    code, _, messages = ends("lower", NAME, "--from", NAME)
    assert code == 2 and f"chop lower '{NAME}': leave out --start-from" in messages


@pytest.mark.parametrize("command", ["search precision", "sweep quantize", "compress"])
def test_a_run_in_the_place_of_a_float_model_is_one_sentence(command, ends):
    code, _, messages = ends(*command.split(), "--model", NAME)
    assert code == 2 and "is the output folder of a chop command" in messages
    advice = re.search(r"(chop compress .*?) shows which model", messages)[1]
    assert pasted(advice) == ("compress", [NAME])


def test_shard_and_bench_take_the_folder(ends, place):
    assert find_checkpoint(str(place / NAME)) == place / NAME / "model"
    code, _, messages = ends("bench", "model", NAME, "--compressed", "other")
    assert code == 2 and "leave out --compressed" in messages


@pytest.mark.long
def test_shard_and_bench_run_on_the_folder(ends, place):
    code, printed, _ = ends("shard", NAME, "--plan-only", "--out", "shard")
    assert code == 0 and "report.html" in printed
    command = ("bench", "model", NAME, "--seconds", 0.01, "--batch", 1, "--no-compile")
    code, printed, _ = ends(*command, "--out", "bench")
    assert code == 0 and "leave --no-compile out" in printed
    assert json.loads((place / "bench/manifest.json").read_text())["settings"]["compressed"] == NAME


def test_advice_names_the_folder_and_can_be_pasted():
    name, words = pasted(bench_command(NAME, "net.py:Net"))
    assert (name, words) == ("bench model", [NAME, "--trust-code"])
    for template in COMMANDS.values():
        line = in_folder(template, NAME)
        assert "{folder}" not in line
        compile(line, "advice", "eval")
        assert f"{NAME}/model" in "".join(re.findall(r"\"(.*?)\"", line))
    text = no_gain(True, {}, None)
    assert "chop" not in text
    text = no_gain(True, {}, NAME, "cnn")
    assert pasted(re.search(r"try (chop .* 64)", text)[1])[1] == [NAME, "--batch", "64"]


@pytest.mark.long
def test_a_model_that_bench_made_itself_is_saved_by_a_command(ends):
    command = ("bench", "model", "--model", "mlp", "--format", "mxint:width=4", "--batch", 1)
    code, printed, _ = ends(*command, "--seconds", 0.01, "--no-compile", "--out", "made")
    assert code == 0 and "DIR" not in printed
    printed = " ".join(printed.split())
    name, words = pasted(re.search(r"To save it: (chop compress .*?--keep-best)", printed)[1])
    assert name == "compress" and words[:4] == ["--model", "mlp", "--formats", "mxint:width=4"]


@pytest.mark.long
def test_emit_takes_a_run_and_its_own_folder(place):
    out = place / "circuit"
    programs.chop("emit", place / NAME, "--samples", 2, "--no-synthesis", "--out", out)
    text = programs.chop("emit", out, "--check-only")
    assert "verified" in text or "equal" in text
    error = programs.chop("emit", out, "--out", place / "other", code=2)
    assert "is from chop emit" in " ".join(error.split())


@pytest.fixture
def copy(place, tmp_path):
    """A copy of the run, to be damaged."""
    return shutil.copytree(place / NAME, tmp_path / "run")


def goes_on_from(run, tmp_path):
    """The commands that read a run's model, as functions of nothing."""
    return (
        lambda: load_judged(EvaluateConfig(str(run), out=tmp_path / "e")),
        lambda: workload_config(compressed_run(run), {}),
        lambda: config_of_run(
            PruneSweepConfig(start_from=run, methods=("l1-norm",), out=tmp_path / "p"), None
        ),
        lambda: check_saved_model(run),
    )


@pytest.mark.parametrize("offset", [0, 0.3, 0.6, 0.999])
def test_a_changed_byte_of_a_runs_model_is_one_sentence(offset, copy, tmp_path):
    content = bytearray((copy / "model.mz").read_bytes())
    content[int(offset * len(content))] ^= 1
    (copy / "model.mz").write_bytes(content)
    for work in goes_on_from(copy, tmp_path)[:3]:
        with pytest.raises(CheckpointError, match=r"model\.mz' has changed .* SHA-256"):
            work()


@pytest.mark.parametrize("name", ["model/config.json", "model/a.safetensors"])
def test_a_changed_byte_of_a_model_by_block_is_one_sentence(name, copy, tmp_path):
    for graph in copy.glob("model.*"):
        graph.unlink()
    (copy / "model").mkdir()
    (copy / name).write_text("model")
    manifest = json.loads((copy / MANIFEST).read_text())
    kept = [each for each in manifest["artifacts"] if not each["path"].startswith("model.")]
    manifest["artifacts"] = [*kept, asdict(Artifact.of(copy / name, copy))]
    (copy / MANIFEST).write_text(json.dumps(manifest))
    assert not compressed_run(copy).has_model
    (copy / name).write_text("madel")
    with pytest.raises(CheckpointError, match=r"model/.*' has changed .* SHA-256"):
        compressed_run(copy)


def test_a_model_is_compared_with_its_digest_once(copy, tmp_path, monkeypatch):
    read, true = [], Artifact.of
    monkeypatch.setattr(Artifact, "of", lambda *names: read.append(names[0]) or true(*names))
    for work in goes_on_from(copy, tmp_path)[:3]:
        work()
        assert [path.name for path in read] == ["model.mz"]
        read.clear()


@pytest.mark.parametrize("text", ["", "{", '{"format": 99}', "[]", '{"kind": 1}'])
def test_a_damaged_manifest_is_not_passed_over(text, copy, tmp_path):
    (copy / MANIFEST).write_text(text)
    for work in goes_on_from(copy, tmp_path):
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            work()


def test_a_missing_manifest_is_told_and_no_other_model_is_pruned(copy, tmp_path):
    (copy / MANIFEST).unlink()
    evaluated, _, pruned, checked = goes_on_from(copy, tmp_path)
    with collected_assumptions() as assumed:
        evaluated()
    assert len([each for each in assumed if "has no manifest.json" in each.text]) == 1
    with pytest.raises(CheckpointError, match=r"lacks manifest\.json.*model'"):
        pruned()
    checked()
    how = {"start_from": copy / "model", "model": "mlp", "methods": ("l1-norm",)}
    config = PruneSweepConfig(**how, out=tmp_path / "p")
    assert config_of_run(config, None) == config


def test_another_built_in_model_is_not_the_runs(ends):
    code, _, error = ends("bench", "model", NAME, "--model", "gpt-tiny", "--seconds", 0.1)
    assert code == 2 and "--model gpt-tiny: 'my runs; it's' has the compressed mlp" in error
    assert error.rstrip().endswith("pass --model mlp.")


def test_a_reference_that_reads_other_rows_is_named(place, tmp_path):
    code = "from torch import nn\nclass Other(nn.Embedding):\n"
    (tmp_path / "other.py").write_text(f"{code}    def __init__(self): super().__init__(9, 2)\n")
    reference = f"{tmp_path}/other.py:Other"
    config = EvaluateConfig(str(place / NAME), reference=reference, out=tmp_path / "e")
    with pytest.raises(ConfigError, match="does not read the rows of .*: expected its float model"):
        load_judged(config)


@pytest.mark.parametrize("settings", [{"weights": "w.pt"}, {"model": "net.py:Net"}])
def test_files_of_a_run_in_another_folder_are_named(settings, place, copy):
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["settings"] |= settings
    (copy / MANIFEST).write_text(json.dumps(manifest))
    message = "does not exist in the current folder: run the command"
    with trust_code(), pytest.raises(ConfigError, match=message):
        workload_config(compressed_run(copy), {})
    with trust_code(), pytest.raises(ConfigError, match=message):
        config_of_run(LowerConfig(start_from=copy, out=copy.parent / "p"), None)


def test_a_missing_data_file_of_a_run_is_named(copy):
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["settings"] |= {"dataset": "gone.csv"}
    (copy / MANIFEST).write_text(json.dumps(manifest))
    run = compressed_run(copy)
    with pytest.raises(ConfigError, match="names the data set 'gone.csv', .* with --dataset"):
        workload_config(run, {})
    assert workload_config(run, {"dataset": "digits"}).dataset == "digits"


def test_an_exported_file_in_the_folder_of_a_run_names_the_run(tmp_path):
    for name in ("model.onnx", "model.mz"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"pass the folder of its run, '{tmp_path}'"):
        ExportConfig(str(tmp_path / "model.onnx"), to=("openvino",))
