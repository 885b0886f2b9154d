import dataclasses
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch

from chop import runs
from chop.base.files import atomic_file, reading, write_text, writers
from chop.cli.adapter import build_command
from chop.cli.command import Command
from chop.errors import CheckpointError, ConfigError, WriteError
from chop.runs import MANIFEST, process_id, process_status, read_manifest
from tests.unprivileged import NEEDS_ROOT, as_nobody, in_a_namespace

ROWS = [{"width": 4, "accuracy": 0.5}, {"width": 8, "accuracy": 0.75}]


@dataclasses.dataclass(frozen=True)
class Settings:
    out: Path
    widths: tuple[int, ...] = (4, 8)


def finish(folder, text="table", rows=ROWS):
    with runs.start("sweep", Settings(folder), folder) as run:
        write_text(folder / "table.md", text)
        run.rows = rows


def document(folder):
    return json.loads((folder / MANIFEST).read_text())


def test_a_manifest_says_what_was_run_and_what_came_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["chop", "sweep", "quantize", "--widths", "4,8"])
    finish(tmp_path / "out")
    found = read_manifest(tmp_path / "out")
    assert (found.kind, found.state, found.error) == ("sweep", "finished", None)
    assert found.settings == {"out": str(tmp_path / "out"), "widths": [4, 8]}
    assert found.command == ("chop", "sweep", "quantize", "--widths", "4,8")
    assert list(found.rows) == ROWS and found.results is found
    (table,) = found.artifacts
    digest = hashlib.sha256(b"table").hexdigest()
    assert (table.path, table.size_bytes, table.sha256) == ("table.md", 5, digest)
    assert found.started <= found.ended and found.process == process_id()
    assert found.environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"cores", "processor", "system", "variables", "versions"} <= set(found.environment)


def test_a_run_that_goes_on_says_so(tmp_path):
    with runs.start("sweep", {}, tmp_path) as run:
        found = read_manifest(tmp_path)
        assert found == run.manifest and (found.state, found.ended) == ("running", None)
        assert found.results is None
    assert read_manifest(tmp_path).state == "finished"


@pytest.mark.parametrize(
    "error, state, told",
    [
        (CheckpointError("too few"), "failed", "CheckpointError: too few"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
        (SystemExit(1), "failed", "SystemExit: 1"),
    ],
)
def test_a_run_that_stops_says_by_what_and_keeps_what_finished_before(error, state, told, tmp_path):
    for earlier in (False, True):
        if earlier:
            finish(tmp_path)
        with pytest.raises(type(error)), runs.start("sweep", {"seed": 1}, tmp_path) as run:
            run.rows = [{"width": 2}]
            raise error
        found = read_manifest(tmp_path)
        assert (found.state, found.error, found.rows) == (state, told, ())
        assert (found.results is not None) == earlier
    with pytest.raises(type(error)), runs.start("sweep", {}, tmp_path):
        raise error
    results = read_manifest(tmp_path).results
    assert list(results.rows) == ROWS and results.settings["widths"] == [4, 8]
    finish(tmp_path)
    assert read_manifest(tmp_path).last_finished is None


def test_a_refused_run_leaves_the_manifest_of_the_finished_one(tmp_path):
    with pytest.raises(ConfigError), runs.start("sweep", {}, tmp_path):
        raise ConfigError("too few")
    assert read_manifest(tmp_path).state == "failed"  # there is no finished one
    finish(tmp_path)
    held = (tmp_path / "manifest.json").read_text()
    with pytest.raises(ConfigError), runs.start("sweep", {"seed": 1}, tmp_path):
        raise ConfigError("too few")
    assert (tmp_path / "manifest.json").read_text() == held
    with pytest.raises(ConfigError), runs.start("sweep", {"seed": 1}, tmp_path):
        write_text(tmp_path / "table.csv", "replaced")
        raise ConfigError("too few")
    assert read_manifest(tmp_path).state == "failed"


RUNNING = """
import sys, time
from chop import runs
with runs.start("sweep", {"width": 4}, sys.argv[1]) as run:
    print("started", flush=True)
    time.sleep(600)
"""


def test_a_killed_run_reads_as_interrupted(tmp_path):
    finish(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", RUNNING, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "started\n"
        assert read_manifest(tmp_path).state == "running"
        os.kill(process.pid, signal.SIGSTOP)
        assert read_manifest(tmp_path).state == "running"
        os.kill(process.pid, signal.SIGKILL)
    assert document(tmp_path)["state"] == "running"
    found = read_manifest(tmp_path)
    assert (found.state, found.ended, found.settings) == ("interrupted", None, {"width": 4})
    assert list(found.results.rows) == ROWS
    finish(tmp_path, "again")
    assert read_manifest(tmp_path).state == "finished"


REPLACING = """
import itertools, sys
from pathlib import Path
from chop import runs
print("started", flush=True)
for number in itertools.count():
    with runs.start("compress", {"number": number}, sys.argv[1]) as run:
        with run.results() as folder:
            (folder / "model.pt").write_text(str(number))
            run.rows = [{"number": number}]
"""


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
@pytest.mark.sampled(2)
def test_a_kill_leaves_results_that_their_manifest_describes(seconds, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", REPLACING, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        while not (tmp_path / "manifest.json").exists():
            assert process.poll() is None
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
    found = read_manifest(tmp_path)
    assert found.state in ("finished", "interrupted")
    if found.results is not None:
        (row,) = found.results.rows
        folders = [tmp_path / ".results.new", tmp_path]
        models = [folder / "model.pt" for folder in folders if (folder / "model.pt").exists()]
        assert models[0].read_text() == str(row["number"])


def test_results_and_manifest_appear_together_or_not_at_all(tmp_path):
    with runs.start("compress", {}, tmp_path) as run:
        with run.results() as folder:
            (folder / "model.pt").write_text("model")
            run.rows = ROWS
            assert read_manifest(tmp_path).state == "running"
            assert not (tmp_path / "model.pt").exists()
        found = read_manifest(tmp_path)
        assert found.state == "finished" and list(found.rows) == ROWS
        assert [artifact.path for artifact in found.artifacts] == ["model.pt"]
    assert read_manifest(tmp_path) == found
    with pytest.raises(RuntimeError), runs.start("compress", {}, tmp_path) as run, run.results():
        raise RuntimeError("no model")
    assert read_manifest(tmp_path).state == "failed"
    assert read_manifest(tmp_path).results == found


def test_artifacts_are_what_this_run_wrote_below_its_folder(tmp_path):
    out = tmp_path / "out"
    write_text(out / "older.md", "older")
    with runs.start("sweep", {}, out) as run:
        write_text(out / "best" / "a.json", "a")
        write_text(out / "gone.md", "gone")
        write_text(tmp_path / "elsewhere.md", "elsewhere")
        with pytest.raises(RuntimeError), atomic_file(out / "half.md"):
            raise RuntimeError
        (out / "gone.md").unlink()
        (out / "by-hand.md").write_text("by another process")
        run.written.append(out / "by-hand.md")
    paths = [artifact.path for artifact in read_manifest(out).artifacts]
    assert paths == ["best/a.json", "by-hand.md"]


def test_of_two_runs_in_one_folder_the_later_has_the_manifest(tmp_path):
    with runs.start("search", {"worker": 1}, tmp_path) as first:
        first.rows = ROWS
        first.manifest = dataclasses.replace(first.manifest, process="elsewhere:1:1")
        with runs.start("search", {"worker": 2}, tmp_path):
            with pytest.warns(UserWarning, match="started here during this run"):
                first.end(None)
            assert read_manifest(tmp_path).settings == {"worker": 2}
            assert read_manifest(tmp_path).state == "running"
    assert read_manifest(tmp_path).settings == {"worker": 2}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": 2}, "has format 2, expected 1.*version of chop that wrote it"),
        ({"format": "x"}, "has format 'x'"),
        ({"state": "finnished"}, "did you mean 'finished'"),
        ({"rows": 3}, "rows: expected a list"),
        ({"artifacts": [{"path": "a"}]}, "missing key 'size_bytes'"),
        ({"kidn": "sweep"}, "unknown key 'kidn': did you mean 'kind'"),
        ({"process": "me", "state": "running"}, "process: got 'me'"),
        ({"process": "a:b:c", "state": "running"}, "process: got 'a:b:c'"),
    ],
)
def test_a_manifest_with_a_wrong_value_is_refused(change, message, tmp_path):
    finish(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({**document(tmp_path), **change}))
    with pytest.raises(CheckpointError, match=message) as caught:
        read_manifest(tmp_path)
    assert str(tmp_path / MANIFEST) in str(caught.value)
    finish(tmp_path)
    assert read_manifest(tmp_path).state == "finished"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"kind": "sweep"}'])
def test_a_corrupt_manifest_is_one_sentence(content, tmp_path):
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match=MANIFEST):
        read_manifest(tmp_path)
    with runs.start("sweep", {}, tmp_path):
        assert read_manifest(tmp_path).state == "running"


@pytest.mark.parametrize(
    ("name", "lacks"), [("", "has no manifest.json"), ("missing", "is not a folder")]
)
def test_a_folder_without_a_manifest_is_one_sentence(name, lacks, tmp_path):
    with pytest.raises(CheckpointError, match=f"{lacks}: expected the output folder"):
        read_manifest(tmp_path / name)
    finish(tmp_path / "run")
    if not name:
        with pytest.raises(CheckpointError, match=r"command; it contains '.*/run'\."):
            read_manifest(tmp_path)


def test_a_process_of_another_machine_is_taken_at_its_word(tmp_path):
    finish(tmp_path)
    far = {**document(tmp_path), "state": "running", "process": "far:boot:1:2:3"}
    (tmp_path / MANIFEST).write_text(json.dumps(far))
    assert read_manifest(tmp_path).state == "running"
    assert process_status("far:boot:1:2:3") == "elsewhere"
    assert process_status(process_id()) == "running"
    assert process_status(process_id().rpartition(":")[0] + ":1") == "ended"


def test_no_secrets_of_urls_are_kept(tmp_path, monkeypatch):
    url = "postgresql://user:pa@ssw0rd@host:5432/db?sslpassword=secret"
    monkeypatch.setattr(sys, "argv", ["chop", "search", f"--storage={url}", "a:b@c?d"])
    finish(tmp_path)
    command = read_manifest(tmp_path).command
    assert command[2:] == ("--storage=postgresql://...@host:5432/db?...", "a:b@c?d")
    assert "ssw0rd" not in (tmp_path / MANIFEST).read_text()


class Mode(Enum):
    FAST = "fast"


@dataclasses.dataclass(frozen=True)
class Nested:
    settings: Settings
    mode: Mode


VALUES = {
    "int64": (np.int64(3), 3),
    "float32": (np.float32(0.5), 0.5),
    "longdouble": (np.longdouble(0.5), 0.5),
    "numpy bool": (np.bool_(True), True),
    "numpy 0-d": (np.array(2), 2),
    "numpy nan": (np.float32("nan"), None),
    "torch": (torch.tensor(0.25), 0.25),
    "torch bool": (torch.tensor(True), True),
    "torch inf": (torch.tensor(math.inf), None),
    "nan": (math.nan, None),
    "inf": (-math.inf, None),
    "large int": (10**400, 10**400),
    "path": (Path("a") / "b", "a/b"),
    "enum": (Mode.FAST, "fast"),
    "range": (range(2), [0, 1]),
    "set": ({4}, [4]),
    "list": ([-math.inf, None, True], [None, None, True]),
    "key": ({1: 2}, {"1": 2}),
    "class": (int, "type"),
    "object": (object(), "object"),
    "nested": (
        Nested(Settings(Path("out")), Mode.FAST),
        {"settings": {"out": "out", "widths": [4, 8]}, "mode": "fast"},
    ),
    "url": ("db://me:secret@host/db?key=1", "db://...@host/db?..."),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("door", ["manifest", "json"])
def test_manifests_and_json_documents_hold_equal_values(door, name, tmp_path, capsys):
    given, expected = VALUES[name]
    if door == "manifest":
        with runs.start("try", {"value": given}, tmp_path) as run:
            run.rows = [{"value": given}]
        found = read_manifest(tmp_path)
        assert found.settings == {"value": expected}
        (row,) = found.rows
    else:
        with pytest.raises(SystemExit):
            build_command(Command(lambda: {"value": given}, help="Try.", is_slow=False), "try")(
                ["--json"]
            )
        row = json.loads(capsys.readouterr().out)["result"]
    assert row == {"value": expected}
    assert type(row["value"]) is type(expected)


FULL = """
import sys
from pathlib import Path
from chop import runs
from chop.errors import WriteError
folder = Path(sys.argv[1])
with runs.start("sweep", {"width": 4}, folder) as run:
    run.rows = [{"width": 4}]
try:
    with runs.start("sweep", {"width": 8}, folder) as run:
        run.rows = [{"width": n} for n in range(100000)]
except WriteError as error:
    print(error)
found = runs.read_manifest(folder)
print(found.settings["width"], found.state, found.results.settings["width"])
"""


@pytest.mark.long
def test_a_full_disk_leaves_the_manifest_of_the_run_that_finished(tmp_path):
    script = 'mount -t tmpfs -o size=64k none "$1"; "$2" -c "$3" "$1"'
    told, found = in_a_namespace(script, tmp_path, sys.executable, FULL).splitlines()
    assert "manifest.json' cannot be written: No space left on device; free some space" in told
    assert found == "8 failed 4"


@NEEDS_ROOT
def test_a_folder_that_may_only_be_read(open_to_all):
    finish(open_to_all)
    assert as_nobody(lambda: list(read_manifest(open_to_all).rows)) == ROWS

    def start():
        with runs.start("sweep", {}, open_to_all):
            pass

    error = as_nobody(start)
    assert isinstance(error, WriteError) and "Permission denied" in str(error)


MLP = {"model": "mlp", "dataset": None}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "compress",
            {"model": "vit"},
            "results of chop compress with model mlp. This run",
        ),
        ("sweep prune", MLP, "This run of chop sweep prune replaces the manifest and files"),
        ("emit", {"out": "x"}, "'.*' contains results .* Use a separate --out"),
        ("compress", MLP, None),
        ("compress", {**MLP, "dataset": "digits"}, None),
    ],
)
@pytest.mark.parametrize("is_failed", [False, True])
def test_results_of_something_else_are_named_before_they_are_replaced(
    kind, settings, message, is_failed, tmp_path, recwarn
):
    with runs.start("compress", MLP, tmp_path):
        pass
    if is_failed:
        with pytest.raises(ValueError), runs.start("compress", MLP, tmp_path):
            raise ValueError("stopped")
    with runs.start(kind, settings, tmp_path):
        warned = [str(each.message) for each in recwarn]
    assert len(warned) == (message is not None)
    assert message is None or re.search(message, warned[0])


@pytest.mark.parametrize("setting", ["model", "dataset", "weights"])
def test_a_folder_of_inputs_is_no_output_folder(setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.csv").write_text("a,label\n1,0\n")
    with (
        pytest.raises(ConfigError, match=f"out: 'own' is the folder of the {setting}"),
        runs.start("compress", {setting: str(tmp_path / "own")}, "own"),
    ):
        pass
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["train.csv"]
    with runs.start("compress", {setting: "own/train.csv"}, "own"):  # beside the data
        pass


@pytest.mark.parametrize("name", ["model.pt", "result.json", "plan.json"])
def test_files_of_the_user_are_not_replaced(name, tmp_path):
    (tmp_path / name).write_text("mine")
    match = f"has files of its own, such as .*{name}, which would be replaced: choose another"
    with pytest.raises(ConfigError, match=match), runs.start("compress", MLP, tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("setting", ["model", "start_from", "compressed", "reference"])
def test_a_job_does_not_replace_the_manifest_of_the_run_that_it_reads(setting, tmp_path):
    with runs.start("compress", MLP, tmp_path):
        pass
    with (
        pytest.raises(ConfigError, match="chop export reads the run of chop compress in this"),
        runs.start("export", {setting: str(tmp_path / "." / "")}, tmp_path),
    ):
        pass
    assert read_manifest(tmp_path).kind == "compress"


@pytest.mark.parametrize("name", ["loop", "loop/points.jsonl", "a\0b", "../../x"])
def test_a_run_starts_where_the_earlier_manifest_names_no_file_of_the_folder(tmp_path, name):
    with runs.start("study", {}, tmp_path):
        pass
    (tmp_path / "loop").symlink_to("loop")
    document = json.loads((tmp_path / MANIFEST).read_text())
    document["artifacts"] = [{"path": name, "size_bytes": 1, "sha256": "0"}]
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with runs.start("study", {}, tmp_path):
        pass
    assert read_manifest(tmp_path).state == "finished"


@pytest.fixture
def small(monkeypatch):
    """Manifests have 20,000 bytes at most."""
    monkeypatch.setattr(reading, "BOUNDS", {**reading.BOUNDS, "manifest": 20_000})
    monkeypatch.setattr(writers, "BOUNDS", reading.BOUNDS)


@pytest.mark.parametrize("is_set", [True, False])
def test_a_manifest_of_too_many_rows_keeps_those_that_can_be_read(is_set, small, tmp_path):
    def run_it(rows):
        with runs.start("sweep", {}, tmp_path) as run:
            run.rows = [{"value": i} for i in range(rows)]
            if is_set:
                with run.results() as fresh:
                    (fresh / "table.csv").write_text("value")

    def fails():
        with runs.start("sweep", {}, tmp_path):
            raise ValueError("x" * 40_000)

    run_it(2)
    assert len(read_manifest(tmp_path).rows) == 2
    with pytest.warns(UserWarning, match="of 5,000 rows"):
        run_it(5000)
    found = read_manifest(tmp_path)
    assert found.state == "finished" and found.rows
    assert found.rows[-1] == {"value": len(found.rows) - 1}
    with pytest.warns(UserWarning, match="a short error"), pytest.raises(ValueError, match="xxx"):
        fails()


def test_settings_that_no_manifest_holds_are_refused_before_the_run(small, tmp_path):
    with pytest.raises(WriteError, match=r"manifest\.json' is not written: it would have"):
        runs.start("sweep", {"names": ["x" * 25_000]}, tmp_path).__enter__()


def test_a_file_instead_of_a_run_is_called_no_folder(tmp_path):
    (tmp_path / "iris.csv").write_text("a,b\n")
    with pytest.raises(CheckpointError, match="iris.csv' is not a folder: expected the output"):
        read_manifest(tmp_path / "iris.csv")
    finish(tmp_path)
    with pytest.raises(CheckpointError, match=f"command, such as '{tmp_path}', which has this"):
        read_manifest(tmp_path / "table.md")
