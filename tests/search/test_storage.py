"""Storages that are there, are not, are damaged, are others', or cannot be written."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import struct
import sys
import traceback

import pytest
import sqlalchemy as sa

from chop.errors import UnavailableError, WriteError
from chop.search.location import MEMORY, storage_file, storage_url
from chop.search.storage import open_engine, storage_errors
from tests.unprivileged import NEEDS_ROOT, as_nobody, in_a_namespace

FORK = multiprocessing.get_context("fork")


def url_of(file):
    return storage_url(str(file), None)


def write(url, count=1):
    """Opens a storage as a search would, and writes rows."""
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS chop_studies (x INTEGER)"))
    for i in range(count):
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO chop_studies VALUES (:i)"), {"i": i})
    return engine


def read(url, **how):
    engine = open_engine(url, create=False, **how)
    try:
        with engine.connect() as connection:
            return [*connection.execute(sa.text("SELECT x FROM chop_studies")).scalars()]
    finally:
        engine.dispose()


def kill_a_writer(url, count):
    """Leaves a write-ahead log behind."""

    def work():
        write(url, count)
        os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def content(folder):
    """The file and its log; the index of the log has no data of its own."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".db-shm"}


@pytest.mark.parametrize("name", ["50 % done", "what?x=1", "a#b", "ä & %41", "日本"])
def test_folders_may_be_called_anything(name, tmp_path):
    url = storage_url(None, tmp_path / name)
    write(url, 2).dispose()
    assert [path.name for path in tmp_path.rglob("*")] == [name, "search.db"]
    assert read(url) == read(url, read_only=True) == [0, 1]


def test_sqlite_writes_ahead(tmp_path):
    engine = open_engine(storage_url(None, tmp_path / "new" / "folder"))
    with engine.connect() as connection:
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 1
    engine.dispose()


def test_memory_is_one_database(tmp_path):
    engine = write(MEMORY, 3)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT COUNT(*) FROM chop_studies")).scalar() == 3
    engine.dispose()


@pytest.mark.parametrize("moment", ["sqlite3.connect", "os.link", "pathlib.Path.unlink"])
def test_a_file_appears_whole(moment, tmp_path, monkeypatch):
    """Killed at any moment while it is made, a storage is not there or can be used."""
    url = storage_url(None, tmp_path)

    def kill(*arguments, **settings):
        os.kill(os.getpid(), signal.SIGKILL)

    def make():
        monkeypatch.setattr(moment, kill)
        open_engine(url)

    process = FORK.Process(target=make)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    file = tmp_path / "search.db"
    assert file.exists() == (moment == "pathlib.Path.unlink")
    assert not file.exists() or file.stat().st_size > 0
    write(url).dispose()
    assert read(url) == [0]


def test_of_workers_that_begin_together_all_see_one_file(tmp_path):
    url = storage_url(None, tmp_path)
    processes = [FORK.Process(target=write, args=(url, 5)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert len(read(url)) == 30
    assert [path.name for path in tmp_path.iterdir()] == ["search.db"]


def test_a_disk_without_hard_links(tmp_path, monkeypatch):
    def link(*paths):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    write(storage_url(None, tmp_path), 2).dispose()
    assert read(storage_url(None, tmp_path)) == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["search.db"]


def test_links_to_files(tmp_path):
    real, link = tmp_path / "disk" / "x.db", tmp_path / "out" / "search.db"
    for path in (real, link):
        path.parent.mkdir()
    link.symlink_to(real)
    kill_a_writer(url_of(link), 3)
    assert sorted(path.name for path in real.parent.iterdir()) == ["x.db", "x.db-shm", "x.db-wal"]
    assert read(url_of(link)) == read(url_of(real), read_only=True) == [0, 1, 2]
    assert link.is_symlink()
    circle = tmp_path / "circle.db"
    circle.symlink_to(circle)
    with pytest.raises(UnavailableError, match="is a folder, device or pipe"):
        open_engine(url_of(circle))


def earlier(file):
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE chop_claims (x)")
        connection.execute("CREATE TABLE studies (x)")


def foreign(file):
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE songs (x)")


def torn(file):
    """The beginning is whole, the pages after it are not."""
    write(url_of(file), 2000).dispose()
    file.write_bytes(file.read_bytes()[:4096] + bytes(4096) + b"\xff" * 20000)


def torn_table(file):
    write(url_of(file), 2000).dispose()
    whole = file.read_bytes()
    file.write_bytes(b"SQLite format 3\0" + b"\x99" * 200 + whole[216:])


KINDS = {
    "empty": (lambda file: file.touch(), "is empty (0 bytes)"),
    "text": (
        lambda file: file.write_text("name,value\n" * 100),
        "is damaged (file is not a database)",
    ),
    "short": (lambda file: file.write_bytes(b"SQLite form"), "is damaged (file is not a database)"),
    "folder": (lambda file: file.mkdir(), "no search found in"),
    "pipe": (lambda file: os.mkfifo(file), "is a folder, device or pipe"),
    "earlier": (earlier, "earlier version of chop"),
    "foreign": (foreign, "belongs to another program"),
    "torn": (torn_table, "is damaged"),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(3)
def test_what_is_no_storage_is_one_sentence(kind, read_only, tmp_path):
    make, message = KINDS[kind]
    file = tmp_path / "search.db"
    make(file)
    before = None if kind in ("folder", "pipe") else file.read_bytes()
    with pytest.raises(UnavailableError) as error:
        open_engine(url_of(file), create=False, read_only=read_only)
    text = str(error.value)
    assert message in text and "\n" not in text and "are safe" not in text
    assert before is None or file.read_bytes() == before


def test_a_folder_in_the_place_of_the_file(tmp_path):
    with pytest.raises(UnavailableError, match="is a folder, device or pipe"):
        open_engine(f"sqlite:///{tmp_path}")


def test_a_file_that_is_damaged_while_it_is_used(tmp_path):
    file = tmp_path / "search.db"
    torn(file)
    with pytest.raises(UnavailableError, match="is damaged") as error, storage_errors(url_of(file)):
        read(url_of(file))
    assert "are safe" not in str(error.value)


def test_a_text_that_is_none_is_damage(tmp_path):
    url = storage_url(None, tmp_path)
    engine = write(url)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO chop_studies VALUES (CAST(x'ff' AS TEXT))"))
    engine.dispose()
    with pytest.raises(UnavailableError, match="is damaged.*UTF-8") as error, storage_errors(url):
        read(url)
    assert "are safe" not in str(error.value)


def test_a_log_without_its_file_is_not_taken_for_new(tmp_path):
    url = storage_url(None, tmp_path)
    kill_a_writer(url, 3)
    storage_file(url).unlink()
    with pytest.raises(UnavailableError, match="search.db-wal' does"):
        open_engine(url)
    assert not storage_file(url).exists()
    (tmp_path / "search.db-wal").unlink()
    open_engine(url).dispose()


def test_a_file_that_is_deleted_or_replaced_while_it_is_used(tmp_path):
    url = storage_url(None, tmp_path)
    engine = write(url)
    shutil.copyfile(tmp_path / "search.db", tmp_path / "copy.db")
    for act in (os.unlink, lambda file: (tmp_path / "copy.db").replace(file)):
        act(tmp_path / "search.db")
        with pytest.raises(UnavailableError, match="moved, deleted or replaced"), engine.begin():
            pass
    engine.dispose()


def test_a_storage_to_read_must_be_there(tmp_path):
    for how in ({"create": False}, {"read_only": True}):
        with pytest.raises(UnavailableError, match="no search found in"):
            open_engine(storage_url(None, tmp_path), **how)
    assert not list(tmp_path.iterdir())


@NEEDS_ROOT
@pytest.mark.parametrize("state", ["closed", "killed", "killed, no index", "running"])
@pytest.mark.sampled(1)
def test_another_users_folder_is_read(state, open_to_all):
    url = storage_url(None, open_to_all)
    engine = write(url, 4)
    if state != "running":
        engine.dispose()
    if state.startswith("killed"):
        kill_a_writer(url, 3)
    if state == "killed, no index":
        (open_to_all / "search.db-shm").unlink()
    files = content(open_to_all)
    assert len(files) == (1 if state == "closed" else 2)
    rows = as_nobody(lambda: read(url, read_only=True))
    assert rows == [0, 1, 2, 3] + [0, 1, 2] * state.startswith("killed")
    assert content(open_to_all) == files
    refused = as_nobody(lambda: read(url))
    assert isinstance(refused, WriteError | list)
    engine.dispose()


@NEEDS_ROOT
def test_what_another_user_may_not_read_or_make(open_to_all):
    url = storage_url(None, open_to_all)
    write(url).dispose()
    (open_to_all / "search.db").chmod(0o600)
    error = as_nobody(lambda: read(url, read_only=True))
    assert isinstance(error, UnavailableError) and "Permission denied" in str(error)
    error = as_nobody(lambda: write(storage_url(None, open_to_all / "new")))
    assert isinstance(error, WriteError) and "cannot be created: Permission denied" in str(error)


READ = """
import sqlalchemy as sa, sys
from chop.search.location import storage_url
from chop.search.storage import open_engine
with open_engine(storage_url(sys.argv[1], None), read_only=True).connect() as connection:
    print(connection.execute(sa.text("SELECT COUNT(*) FROM chop_studies")).scalar())
"""


@pytest.mark.long
def test_a_read_only_mount_is_read(tmp_path):
    kill_a_writer(storage_url(None, tmp_path), 6)
    script = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; "$2" -c "$3" "$1"'
    assert in_a_namespace(script, tmp_path, sys.executable, READ) == "6\n"


@pytest.mark.long
def test_a_storage_is_read_on_a_full_disk(tmp_path):
    """Where even the index of the log has no room."""
    kill_a_writer(storage_url(None, tmp_path / "source"), 6)
    (tmp_path / "source" / "search.db-shm").unlink()
    script = """mkdir "$1/disk"; mount -t tmpfs -o size=256k none "$1/disk"
        cp "$1"/source/* "$1/disk"; dd if=/dev/zero of="$1/disk/fill" 2>/dev/null || true
        "$2" -c "$3" "$1/disk" """
    assert in_a_namespace(script, tmp_path, sys.executable, READ) == "6\n"


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    url = storage_url(None, tmp_path)
    engine = write(url, 5)
    with engine.connect() as connection:
        pages = connection.execute(sa.text("PRAGMA page_count")).scalar()
        connection.execute(sa.text(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(WriteError, match="is full; free some.*safe"), storage_errors(url):
            for _ in range(2000):
                connection.execute(sa.text("INSERT INTO chop_studies VALUES (7)"))
    engine.dispose()
    assert read(url) == [0, 1, 2, 3, 4]


def test_a_locked_file_is_not_read_past_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr("chop.search.storage.LOCK_SECONDS", 0.01)
    url = storage_url(None, tmp_path)
    write(url).dispose()
    with contextlib.closing(sqlite3.connect(tmp_path / "search.db")) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("INSERT INTO chop_studies VALUES (1)")
        other.commit()
        with pytest.raises(UnavailableError, match="database is locked"):
            read(url, read_only=True)
    assert read(url, read_only=True) == [0, 1]


@pytest.mark.parametrize("begun", [False, True])
def test_trials_are_called_safe_only_where_some_can_be(begun, tmp_path):
    url = storage_url(None, tmp_path)
    engine = write(url)
    locked = sqlite3.connect(tmp_path / "search.db", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    with engine.connect() as connection:
        connection.execute(sa.text("PRAGMA busy_timeout = 1"))
        insert = sa.text("INSERT INTO chop_studies VALUES (1)")
        with (
            pytest.raises(UnavailableError, match="is locked") as error,
            storage_errors(url, begun=begun),
        ):
            connection.execute(insert)
    locked.close()
    engine.dispose()
    assert ("trials are safe" in str(error.value)) is begun


@pytest.mark.parametrize(
    "url, message",
    [
        ("sqlite:////proc/nowhere/x.db", "nowhere"),
        ("postgresql://u:s3cr3t@127.0.0.1:1/d", "cannot be used"),
        ("postgresql://127.0.0.1:1/d?user=u&password=s3cr3t", "cannot be used"),
        ("postgresql://u:a%40s3cr3t@127.0.0.1:1/d?passfile=/s3cr3t", "cannot be used"),
        ("postgresql://u@127.0.0.1:1/d?sslmode=s3cr3t", "cannot be used"),
        ("postgresql://u:s3cr3t@no..host/d", "cannot be used"),
        ("postgresql://u:s3cr3t@127.0.0.1:99999/d", "invalid port number"),
        ("postgresql://u:s3cr3t@127.0.0.1:1/d?connect_timeout=x", "cannot be used"),
        ("postgresql://127.0.0.1:1/d?passwort=s3cr3t", "unknown PostgreSQL option"),
        ("postgresql://127.0.0.1:1/d?password=a&s3cr3t=b", "unknown PostgreSQL option"),
        ("postgresql://127.0.0.1:1/d?password=s3cr3t&password=b", "cannot be used"),
    ],
)
def test_storages_that_are_not_there(url, message):
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(OSError, match=message) as error:
        open_engine(storage_url(url, None))
    shown = "".join(traceback.format_exception(error.value))
    assert "s3cr3t" not in shown.replace("sslmode=s3cr3t", "").replace('"s3cr3t"', "")
    assert "are safe" not in str(error.value)


def test_a_server_is_read_without_writing(postgres):
    url = storage_url(postgres.url, None)
    engine = open_engine(url, read_only=True)
    with engine.connect() as connection:
        answer = connection.execute(sa.text("SHOW transaction_read_only")).scalar()
    assert answer == "on"
    engine.dispose()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE chop_claims (x INTEGER)"))
    try:
        with pytest.raises(UnavailableError, match="earlier version of chop"):
            open_engine(url)
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE chop_claims"))
        engine.dispose()


def test_a_role_that_may_only_read(postgres):
    admin = open_engine(storage_url(postgres.url, None))
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("CREATE DATABASE reading"))
        connection.execute(sa.text("CREATE ROLE reader LOGIN"))
    admin.dispose()
    url = postgres.url.replace("/postgres?", "/reading?")
    owner = write(storage_url(url, None), 2)
    with owner.begin() as connection:
        connection.execute(sa.text("GRANT SELECT ON chop_studies TO reader"))
    owner.dispose()
    url = storage_url(url.replace("postgres@", "reader@"), None)
    assert read(url, read_only=True) == [0, 1]
    engine = open_engine(url)
    with engine.connect() as connection:
        insert = sa.text("INSERT INTO chop_studies VALUES (2)")
        with pytest.raises(UnavailableError, match="permission denied"), storage_errors(url):
            connection.execute(insert)
    engine.dispose()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
HOSTILE = {
    "view": f"CREATE VIEW chop_trials AS {ENDLESS}",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON chop_studies BEGIN DELETE FROM chop_studies; END",
    "virtual": "CREATE VIRTUAL TABLE chop_trials USING fts5(x)",
}


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_with_programs_of_its_own_is_refused(name, read_only, tmp_path):
    url = url_of(tmp_path / "search.db")
    write(url).dispose()
    with contextlib.closing(sqlite3.connect(tmp_path / "search.db")) as connection:
        connection.execute(HOSTILE[name])
        connection.commit()
    with pytest.raises(UnavailableError, match="views, triggers or virtual tables"):
        read(url, read_only=read_only)


def test_texts_that_a_file_makes_are_bounded(tmp_path):
    url = url_of(tmp_path / "search.db")
    write(url).dispose()
    with contextlib.closing(sqlite3.connect(tmp_path / "search.db")) as connection:
        connection.execute("ALTER TABLE chop_studies ADD COLUMN y AS (zeroblob(100000000))")
    engine = open_engine(url, create=False, read_only=True)
    with pytest.raises(sa.exc.DataError, match="too big"), engine.connect() as connection:
        connection.execute(sa.text("SELECT y FROM chop_studies")).all()


def rollback_log(file, named):
    """A rollback log whose end names a file, as SQLite writes it for several databases."""
    name, page = os.fsencode(named), 4096
    start = bytes.fromhex("d9d505f920a163d7")
    head = struct.pack(">5I", 0, 1, file.stat().st_size // page, 512, page)
    end = struct.pack(">2I", len(name), sum(name)) + start
    return (start + head).ljust(512, b"\0") + struct.pack(">I", 2**30 // page + 1) + name + end


@pytest.mark.parametrize("read_only", [True, False])
def test_a_log_deletes_no_file_that_it_names(read_only, tmp_path):
    file, others = tmp_path / "search.db", tmp_path / "others.txt"
    others.write_text("theirs")
    write(url_of(file)).dispose()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    (tmp_path / "search.db-journal").write_bytes(rollback_log(file, others))
    with pytest.raises(UnavailableError, match="delete it"):
        read(url_of(file), read_only=read_only)
    assert others.read_text() == "theirs"
    with contextlib.closing(sqlite3.connect(file)) as connection:  # as SQLite itself reads it
        assert connection.execute("SELECT COUNT(*) FROM chop_studies").fetchone() == (1,)
    assert not others.exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "dangling"])
@pytest.mark.parametrize("log", ["wal", "journal"])
def test_a_log_is_a_file_of_its_own(log, kind, tmp_path):
    write(url_of(tmp_path / "search.db")).dispose()
    path, others = tmp_path / f"search.db-{log}", tmp_path / "others"
    others.write_text("theirs")
    targets = {"link": others, "device": "/dev/zero", "dangling": "nowhere"}
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(targets[kind])
    with pytest.raises(UnavailableError, match="expected a regular file, got a "):
        read(url_of(tmp_path / "search.db"))
    assert others.read_text() == "theirs"
