"""`chop ui` answers those alone who have its token, follows no links, and ends at once."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from pathlib import Path

import pytest

from chop.base.files.temporary import OWNER
from chop.report.ui import browser
from chop.runs import MANIFEST
from tests import programs
from tests.actions.test_job import Settings
from tests.browsing import BROWSER, QUIET, needs_browser
from tests.report.page.test_page import build_report, job_of, run_job

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'mase-chop[ui]'")
pytest.importorskip("starlette", reason="needs starlette: pip install 'mase-chop[ui]'")

from chop.report.ui import server
from tests.report.ui.serving import SECRET, serving

PATHS = ["/", "/runs", "/run/first", "/progress/first", "/nothing", "/run/..%2f..%2fetc", "//x"]


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory):
    root = tmp_path_factory.mktemp("ui") / "runs"
    run_job(job_of(build_report()), Settings(root / "first"))
    return root


@pytest.fixture(name="ask", scope="module")
def _ask(root):
    with serving(root) as asked:
        yield asked


@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_gets_one_sentence(path, ask):
    for query in ("", "?token=", "?token=wrong", f"?Token={SECRET}", "?token=%ff%00", "?token=é"):
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            found = ask.as_stranger((path + query).replace("é", "%C3%A9"), method)
            assert found.status == 403
            assert found.text == ("" if method == "HEAD" else server_refusal())
            assert "Set-Cookie" not in found.headers
            assert found.headers["X-Content-Type-Options"] == "nosniff"


def server_refusal() -> str:
    from chop.report.ui.access import REFUSAL

    assert REFUSAL.count(".") == 1
    return REFUSAL


@pytest.mark.parametrize(
    "cookie",
    ["chop-ui={}", "chop-ui-1={}", "chop-ui-PORT=", "chop-ui-PORT=x{}", "token={}", "\xff"],
)
def test_other_cookies_open_nothing(cookie, ask):
    given = cookie.replace("PORT", str(ask.port)).format(SECRET)
    assert ask.as_stranger("/runs", Cookie=given).status == 403


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/?token={}", "/"),
        ("/run/first?token={}", "/run/first"),
        ("/run/first?token=old&token={}&a=1%262", "/run/first?a=1%262"),
        ("//evil.example/?token={}", "/evil.example/"),
        ("/%5C/evil.example?token={}", "/%5C/evil.example"),
        ("/run/a%0d%0ab?token={}", "/run/a%0D%0Ab"),
    ],
)
def test_the_token_is_changed_for_a_cookie(path, place, ask):
    found = ask.as_stranger(path.format(SECRET))
    assert (found.status, found.headers["Location"]) == (303, place)
    kept = [part.strip() for part in found.headers["Set-Cookie"].split(";")]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(kept)
    assert not any(part.startswith(("Domain", "Expires", "Max-Age")) for part in kept)
    assert ask.as_stranger("/runs", Cookie=kept[0]).status == 200


def test_from_another_site_a_page_leads_on(ask):
    found = ask.as_stranger(f"/run/%22%3E?token={SECRET}", Sec_Fetch_Site="cross-site")
    assert found.status == 200 and found.headers["Set-Cookie"].startswith(f"chop-ui-{ask.port}=")
    assert found.text.endswith('content="0; url=/run/%22%3E">')
    assert "sandbox" not in found.headers["Content-Security-Policy"]


def test_a_site_that_points_here_gets_nothing_for_the_token(ask):
    for host in ("evil.example", f"evil.example:{ask.port}", "127.0.0.1.evil.example", ""):
        assert ask.as_stranger(f"/?token={SECRET}", Host=host).status == 400


def test_websockets_need_the_token_too(ask):
    asked = (
        f"GET /run/first HTTP/1.1\r\nHost: 127.0.0.1:{ask.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", ask.port), timeout=30) as line:
        line.sendall(asked.encode())
        assert line.recv(99).startswith(b"HTTP/1.1 403 ")


def test_tokens_are_new_and_long(monkeypatch, tmp_path, capsys):
    said = []
    monkeypatch.setattr(server, "_run", lambda running, listener: said.append(listener))
    for _ in range(2):
        server.serve(tmp_path, 0, False)
    first, second = re.findall(r"http://127\.0\.0\.1:\d+/\?token=(\S+)", capsys.readouterr().out)
    assert first != second and min(len(first), len(second)) >= 40


# --- the browser


def test_the_browser_is_given_no_secret_in_its_arguments(monkeypatch, tmp_path, capsys):
    given = []

    def show(address):
        page = Path(address.removeprefix("file://"))
        given.append((address, page.read_text(), page.parent.stat().st_mode & 0o777))

    monkeypatch.setattr(webbrowser, "open", show)
    monkeypatch.setattr(server, "_run", lambda running, listener: wait_for(given))
    server.serve(tmp_path, 0, True)
    ((address, text, mode),) = given
    printed = re.search(r"http://\S+", capsys.readouterr().out)[0]
    assert printed in text and "token" not in address
    if os.name == "posix":
        assert mode == 0o700
    assert not Path(address.removeprefix("file://")).exists()


def test_the_file_of_a_browser_that_was_killed_is_removed_by_the_next_process(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(webbrowser, "open", lambda address: None)
    with browser.opened("http://127.0.0.1:1/"):
        (folder,) = tmp_path.iterdir()
        assert OWNER.search(folder.name)  # names this process, so that others know that it ended
    assert not folder.exists()


def wait_for(found):
    end = time.monotonic() + 30
    while not found and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("variables", "at_terminal", "expected"),
    [
        ({"DISPLAY": ":0"}, True, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        ({"DISPLAY": ":0"}, False, False),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"}, True, False),
        ({"DISPLAY": ""}, True, False),
        ({}, True, False),
    ],
)
def test_a_window_is_opened_for_somebody_at_a_desktop(
    variables, at_terminal, expected, monkeypatch
):
    for name in (*browser.DISPLAYS, "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: at_terminal, raising=False)
    assert browser.has_desktop() is expected


@needs_browser
def test_a_browser_gets_from_its_file_to_the_page(ask, tmp_path, monkeypatch):
    said = []

    def show(address):
        options = [*QUIET, f"--user-data-dir={tmp_path / 'profile'}", address]
        for _ in range(3):  # Chromium prints nothing if its time ends during the redirection
            command = subprocess.run(
                [BROWSER, *options], capture_output=True, text=True, timeout=60, check=False
            )
            if command.stdout:
                break
        said.append(command.stdout)

    monkeypatch.setattr(webbrowser, "open", show)
    with browser.opened(f"http://127.0.0.1:{ask.port}/run/first?token={SECRET}"):
        end = time.monotonic() + 180
        while not said and time.monotonic() < end:
            time.sleep(0.05)
    assert "numbers" in said[0] and "token" not in said[0]


# --- links, pipes and devices


@pytest.fixture(name="others", scope="module")
def _others(tmp_path_factory):
    """A run with a secret, outside of the folder that is served."""
    place = tmp_path_factory.mktemp("others") / "run"
    run_job(job_of(build_report("secret")), Settings(place))
    write_run(place, "sweep quantize", model="secret")
    point = {"settings": {"width": "secret"}, "result": {"x": 1}}
    (place / "points.jsonl").write_text(json.dumps(point) + "\n")
    return place


def write_run(place, kind, **settings):
    place.mkdir(parents=True, exist_ok=True)
    manifest = {"kind": kind, "settings": settings, "state": "finished", "process": "a:b:1:2"}
    (place / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture(name="odd_runs", scope="module")
def _odd_runs(tmp_path_factory):
    """A folder, and the server of it."""
    root = tmp_path_factory.mktemp("odd")
    with serving(root) as asked:
        yield root, asked


def as_pipe(place, target):
    os.mkfifo(place)


def as_folder(place, target):
    place.mkdir()


def as_device(place, target):
    place.symlink_to("/dev/zero")


def as_link(place, target):
    place.symlink_to(target)


def as_link_to_itself(place, target):
    place.symlink_to(place)


def as_socket(place, target):
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(place.parent)
        try:
            made.bind(place.name)
        finally:
            os.chdir(before)


def as_large_file(place, target):
    with place.open("wb") as file:
        file.truncate(2**40)


KINDS = [
    as_pipe,
    as_folder,
    as_device,
    as_link,
    as_link_to_itself,
    as_socket,
    as_large_file,
]


@pytest.mark.sampled(14)
@pytest.mark.skipif(sys.platform != "linux", reason="has pipes, links and devices of its own")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", [MANIFEST, "points.jsonl", "report.html", "search.db"])
def test_what_is_no_file_of_the_run_is_told_and_not_read(name, make, others, odd_runs):
    (root, ask), path = odd_runs, f"{name}-{make.__name__}"
    write_run(root / path, "search precision" if name == "search.db" else "sweep quantize")
    (root / path / name).unlink(missing_ok=True)
    make(root / path / name, others / name)
    answers = [ask(asked) for asked in ("/", "/runs", f"/run/{path}", f"/progress/{path}")]
    is_run = name != MANIFEST or make is not as_folder
    assert [status for status, _ in answers] == [200] * 2 + [200 if is_run else 404] * 2
    assert not any("secret" in text for _, text in answers)
    is_read = make is as_large_file and name in ("points.jsonl", "search.db")  # in parts
    assert is_read or not is_run or f"{name} " in answers[2][1] or f"{name}: " in answers[2][1]


def test_runs_behind_links_are_not_listed(others, tmp_path):
    root = tmp_path / "served"
    run_job(job_of(build_report()), Settings(root / "own"))
    (root / "out").symlink_to(others)
    (root / "own" / "deep").symlink_to(others.parent)
    (root / "again").symlink_to(root / "own")
    with serving(root) as ask:
        status, text = ask("/")
        assert status == 200 and text.count("/run/") == 1
        for path in ("out", "own/deep/others", "again", "own/../again", "own/deep/../own"):
            assert ask(f"/run/{path}")[0] == ask(f"/progress/{path}")[0] == 404


def test_the_folder_itself_may_be_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    with serving(tmp_path / "link") as ask:
        assert "/run/first" in ask("/")[1] and ask("/run/first")[0] == 200


def test_trials_beside_the_folder_are_not_shown(tmp_path):
    from chop.search import Choice, Goal, Search, SearchSpace

    out = tmp_path / "search"
    space = SearchSpace((Choice("width", {"4": 4, "8": 8}),))
    search = Search(
        space,
        lambda *_: {"loss": 1.0},
        Goal("loss", "minimize"),
        sampler="random",
        out=out,
        name="a",
    )
    search.run(2)
    write_run(out / "a", "search")
    for served, path, shows in ((out, "a", True), (out / "a", ".", False)):
        with serving(served) as ask:
            status, text = ask(f"/run/{path}")
        assert status == 200 and ("<circle" in text) is shows
        assert ("outside of the served folder" in text) is not shows


# --- the end


@pytest.mark.skipif(sys.platform != "linux", reason="has signals and pipes of its own")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_while_a_request_hangs(number, root, tmp_path):
    script = tmp_path / "hanging.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from chop.cli.app import app\n"
        "from chop.report.ui.folder import RunsFolder\n"
        "def hang(self):\n"
        "    Path(sys.argv.pop()).touch()\n"
        "    time.sleep(1000)\n"
        "RunsFolder.runs = hang\n"
        f"sys.argv = ['chop', 'ui', {str(root)!r}, '--port', '0', {str(tmp_path / 'asked')!r}]\n"
        "app(sys.argv[1:-1])\n"
    )
    with programs.started(script, told=tmp_path) as process:
        while process.is_alive() and "token=" not in (tmp_path / "stdout").read_text():
            time.sleep(0.01)
        found = re.search(r":(\d+)/\?token=(\S+)", (tmp_path / "stdout").read_text())
        cookie = {"Cookie": f"chop-ui-{found[1]}={found[2]}"}
        threading.Thread(target=ask_in_vain, args=(int(found[1]), cookie), daemon=True).start()
        while process.is_alive() and not (tmp_path / "asked").exists():
            time.sleep(0.01)
        start = time.monotonic()
        os.kill(process.pid, number)
        process.join(30)
        assert process.exitcode in (128 + number, -number) and time.monotonic() - start < 10
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def ask_in_vain(port, headers):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        line.sendall(
            f"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {headers['Cookie']}\r\n\r\n".encode()
        )
        line.recv(1)
