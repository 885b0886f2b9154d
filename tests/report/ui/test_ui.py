"""`chop ui`: a list of runs that advance, on the loopback address, and nothing else."""

import http.cookiejar
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from chop import runs
from chop.errors import ConfigError
from chop.report.ui import server
from chop.report.ui.folder import RunsFolder
from chop.search import Choice, Goal, Search, SearchSpace
from tests import programs
from tests.actions.test_job import Settings
from tests.browsing import BROWSER, QUIET, needs_browser
from tests.report.page.test_page import HOSTILE, Reader, build_report, job_of, run_job

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'mase-chop[ui]'")
pytest.importorskip("starlette", reason="needs starlette: pip install 'mase-chop[ui]'")

from tests.report.ui.serving import SECRET, serving


@pytest.fixture(name="root")
def _root(tmp_path):
    run_job(job_of(build_report()), Settings(tmp_path / "runs" / "first"))
    return tmp_path / "runs"


@pytest.fixture(name="ask")
def _ask(root):
    """A function: path -> status and text, of a server on a free port."""
    with serving(root) as asked:
        yield asked


def test_the_list_has_every_run_and_opens_its_page(root, ask):
    status, text = ask("/")
    assert status == 200 and Reader(text).open == []
    assert 'href="/run/first"' in text and "finished" in text
    assert ask("/run/first") == (200, (root / "first" / "report.html").read_text())
    assert ask("/run/second")[0] == ask("/progress/second")[0] == 404


def test_it_is_of_this_machine_alone(ask):
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(OSError), socket.create_connection((own, ask.port), timeout=2):
            pass
    assert ask("/", Host="evil.example")[0] == 400
    assert ask("/runs", Host=f"localhost:{ask.port}")[0] == 200


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../..",
        "%2e%2e/%2e%2e/etc",
        "/etc",
        "%2Fetc",
        "first/../../secret",
        "out",
        "a%00b",
        "a" * 300,
        ".",
    ],
)
def test_nothing_outside_the_folder_can_be_read(path, root, ask):
    secret = root.parent / "secret"
    run_job(job_of(build_report("secret")), Settings(secret))
    (root / "out").symlink_to(secret)
    for kind in ("run", "progress"):
        status, text = ask(f"/{kind}/{path}")
        assert status == 404 and "secret" not in text
    assert "secret" not in ask("/")[1]


TRIES = """
const said = [];
const attempt = async (what, action) => {
  try { said.push(`${what}: ${await action() ? "done" : "nothing"}`); }
  catch { said.push(`${what}: refused`); }
};
const loaded = (kind, attributes) => new Promise((done, refused) => {
  const made = Object.assign(document.createElement(kind), attributes);
  made.onload = () => done(true);
  made.onerror = refused;
  document.body.append(made);
  setTimeout(refused, 500);
});
(async () => {
  await attempt("fetch", async () => (await fetch("/runs")).ok);
  await attempt("window", () => window.open("/"));
  await attempt("storage", () => { localStorage.x = 1; return true; });
  await attempt("script", () => loaded("script", { src: "/runs" }));
  await attempt("picture", () => loaded("img", { src: "/run/first" }));
  await attempt("origin", () => self.origin !== "null");
  document.body.textContent = said.join(", ");
})();
"""


def policy(headers):
    parts = (part.split() for part in headers["Content-Security-Policy"].split(";"))
    return {name: values for name, *values in parts}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["/", "/runs", "/run/first", "/run/second", "/progress/first"])
def test_every_answer_has_a_policy(path, root, ask):
    with runs.start("sweep quantize", {}, root / "second"):
        found = ask.headers(path)
    rules = policy(found)
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == ["'none'"]
    assert found["X-Content-Type-Options"] == "nosniff" and found["Cache-Control"] == "no-store"
    assert found["Cross-Origin-Resource-Policy"] == "same-origin"
    if path == "/run/first":  # a file that anybody may have written
        assert rules["sandbox"] == ["allow-scripts"] and "connect-src" not in rules
    elif path in ("/", "/run/second"):
        (nonce,) = rules["script-src"]
        assert nonce != policy(ask.headers(path))["script-src"][0] and "sandbox" not in rules
    else:
        assert rules["sandbox"] == [] and "script-src" not in rules
    assert ("Cross-Origin-Opener-Policy" in found) == ("sandbox" not in rules)


def test_the_scripts_of_the_server_are_those_that_its_policy_names(root, ask):
    with runs.start("sweep quantize", {}, root / "second"):
        for path in ("/", "/run/second"):
            _, text, headers = ask.whole(path)
            (nonce,) = policy(headers)["script-src"]
            assert re.findall("<script[^>]*>", text) == [f'<script nonce="{nonce[7:-1]}">']


@needs_browser
def test_a_hostile_page_can_ask_the_server_for_nothing(root, ask, tmp_path):
    (root / "first" / "report.html").write_text(f"<body><script>{TRIES}</script>")
    options = [*QUIET, f"--user-data-dir={tmp_path / 'profile'}"]
    command = [BROWSER, *options, f"http://127.0.0.1:{ask.port}/run/first?token={SECRET}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert re.search(r"<body>(.*?)<", done.stdout)[1] == (
        "fetch: refused, window: nothing, storage: refused, script: refused, picture: refused, "
        "origin: nothing"
    )


def test_a_finished_run_without_a_page_says_so_and_stays(root, ask):
    (root / "first" / "report.html").unlink()
    status, text = ask("/run/first")
    assert (
        status == 200
        and "Create it with <code>chop report</code>" in text
        and "<script" not in text
    )
    with runs.start("sweep quantize", {}, root / "second"):
        assert "setTimeout(refresh" in ask("/run/second")[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "{" * 300,
        json.dumps({"kind": HOSTILE, "settings": {"model": HOSTILE}, "state": "failed"}),
        json.dumps(
            {
                "kind": HOSTILE,
                "settings": {"model": HOSTILE},
                "state": "failed",
                "process": "p",
                "error": HOSTILE,
                "started": HOSTILE,
            }
        ),
        json.dumps({"kind": "search", "settings": {}, "state": "failed", "process": "p"}),
    ],
    ids=str,
)
def test_hostile_manifests_are_rows_of_text(manifest, root, ask):
    place = root / "odd <b> name"
    place.mkdir()
    (place / "manifest.json").write_text(manifest)
    (place / "points.jsonl").write_text(
        json.dumps({"settings": {HOSTILE: HOSTILE}, "result": {"x": 1}}) + "\n{half"
    )
    plain = Reader(ask("/")[1])
    assert plain.open == [] and plain.scripts == 1
    assert "first" in ask("/")[1]
    status, text = ask("/run/odd%20%3Cb%3E%20name")
    assert status == 200 and Reader(text).open == [] and Reader(text).scripts == 0
    assert "<img" not in text


def test_a_running_search_advances(root, ask):
    place = root / "search" / "widths"

    def measured():
        found = json.loads(ask("/progress/search/widths")[1])
        assert found["state"] == "running"
        return found["html"]

    with runs.start("search precision", {"model": "mlp"}, place):
        space = SearchSpace((Choice("width", {str(w): w for w in range(9)}),))
        told = []

        def score(config, report):
            told.append(measured())
            return {"score": 1.0 / (1 + int(config["width"]))}

        out = str(root / "search")
        search = Search(space, score, Goal("score"), sampler="random", out=out, name="widths")
        search.run(3)
        told.append(measured())
    assert "<circle" not in told[0] and told[-1].count("<circle") == 2 * 3  # wide and narrow
    assert [told[i] != told[i + 1] for i in range(3)] == [True] * 3


def test_a_running_sweep_shows_its_points(root, ask):
    with runs.start("sweep quantize", {}, root / "sweep"):
        journal = runs.Journal(root / "sweep" / "points.jsonl")
        for width in range(30):
            journal.add({"width": width, "rows": [1]}, {"accuracy": width / 64})
        text = json.loads(ask("/progress/sweep")[1])["html"]
    assert "The last 20 of 30 points" in text and "<td>29</td>" in text and "<td>9</td>" not in text
    assert "accuracy" in text and "rows" not in text


@pytest.mark.long
def test_five_hundred_runs_are_listed_within_a_second(root):
    manifest = (root / "first" / "manifest.json").read_text()
    for number in range(500):
        (root / f"run-{number}").mkdir()
        (root / f"run-{number}" / "manifest.json").write_text(manifest)
    found = RunsFolder(root)
    start = time.process_time()
    assert len(found.runs()) == 501
    first = time.process_time() - start
    start = time.process_time()
    assert len(found.runs()) == 501
    assert time.process_time() - start < first < 5  # a bound of the test, a second is the aim


def test_a_run_that_ends_is_read_again(root):
    folder = RunsFolder(root)
    with runs.start("sweep", {}, root / "other"):
        assert folder.run("other").state == "running"
    assert folder.run("other").state == "finished"


def test_ports_and_folders_that_cannot_be_had_are_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        server.serve(tmp_path / "nothing", 0, False)
    with server._listener(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*; --port 0 selects a free port"):
            server.serve(tmp_path, port, False)
    with pytest.raises(ConfigError, match="port 99999"):
        server.serve(tmp_path, 99999, False)


def test_the_command_serves_until_ctrl_c(root, tmp_path):
    with programs.started(programs.COMMAND, "ui", root, "--port", "0", told=tmp_path) as process:
        while process.is_alive() and "http://" not in (tmp_path / "stdout").read_text():
            time.sleep(0.01)
        url = (tmp_path / "stdout").read_text().split()[1]
        keeping = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        with urllib.request.build_opener(keeping).open(url, timeout=30) as answer:
            assert b"/run/first" in answer.read() and "token" not in answer.url
        os.kill(process.pid, signal.SIGINT)
        process.join(30)
        assert process.exitcode in (0, 130)
    assert "Traceback" not in (tmp_path / "stderr").read_text()
