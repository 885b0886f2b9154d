import os
import traceback
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.search.location import (
    MEMORY,
    check_study_name,
    storage_file,
    storage_url,
    without_password,
)
from tests.subcases import subcases

SECRET = "s3cr3t"


def test_names_of_storages(tmp_path):
    assert storage_url(None, tmp_path) == f"sqlite:///{tmp_path}/search.db"
    assert storage_url(str(tmp_path), None) == f"sqlite:///{tmp_path}/search.db"
    assert storage_url(str(tmp_path / "x.db"), None) == f"sqlite:///{tmp_path}/x.db"
    assert storage_url(f"sqlite:///{tmp_path}/x.db", None) == f"sqlite:///{tmp_path}/x.db"
    for name in ("postgresql://u:p@h/d", "postgres://u:p@h/d", "postgresql+psycopg://u:p@h/d\n"):
        assert storage_url(name, None) == "postgresql+psycopg://u:p@h/d"
    assert storage_url(MEMORY, tmp_path) == MEMORY == without_password(MEMORY)
    assert storage_file(MEMORY) is storage_file("postgresql+psycopg://h/d") is None


def test_names_stay_the_same_when_the_working_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    urls = [storage_url(name, None) for name in ("a/x.db", "sqlite:///a/x.db")]
    urls.append(storage_url(None, Path("a")))
    monkeypatch.chdir("/")
    files = [storage_file(url) for url in urls]
    assert files == [tmp_path / "a/x.db", tmp_path / "a/x.db", tmp_path / "a/search.db"]
    for name in ("~/x.db", "sqlite:///~/x.db"):
        assert storage_file(storage_url(name, None)) == Path("/home/somebody/x.db")


@pytest.mark.parametrize(
    "name", ["50 % done", "what?x=1", "a#b", "ä & %41", "日本", "a:b", "a@b", "a "]
)
def test_folders_may_be_called_anything(name, tmp_path):
    (tmp_path / name).mkdir()
    for url in (storage_url(None, tmp_path / name), storage_url(f"{tmp_path}/{name}", None)):
        assert storage_url(url, None) == url
        assert str(storage_file(url)) == without_password(url)
        assert storage_file(url) == tmp_path / name / "search.db"


@subcases(
    "name, message",
    [
        ("redis://x", "kind 'redis'"),
        (f"u:{SECRET}@h://x", "kind 'u'"),
        ("", "empty text"),
        ("sqlite://", "sqlite:///FILE"),
        ("sqlite:///:memory:", "sqlite:///FILE"),
        ("sqlite://x.db", "sqlite:///FILE"),
        ("sqlite:x.db", "sqlite:///FILE"),
        ("sqlite:///x.db?mode=ro", "sqlite:///FILE"),
        ("postgresql://", "cannot be read"),
        (f"postgresql://u:{SECRET}@", "cannot be read"),
        (f"postgresql:u:{SECRET}@h/d", "cannot be read"),
        (f"postgresql://u:{SECRET}@h:port/d", "cannot be read"),
        (f"postgresql://u@h:{SECRET}/d", "cannot be read"),
        (f"postgresql://u:p@{SECRET}@h/d", "cannot be read"),
        (f"postgresql://h?user=u&password=p@{SECRET}", "cannot be read"),
        (f"postgresql://h/d#{SECRET}", "cannot be read"),
        (f"postgresql://h/d?{SECRET}", "cannot be read"),
        (f"postgresql://h/d?password=a&{SECRET}", "cannot be read"),
    ],
)
def test_what_is_no_storage_is_one_sentence_without_secrets(name, message):
    with pytest.raises(ConfigError, match=message) as error:
        storage_url(name, None)
    assert "\n" not in str(error.value)
    assert SECRET not in "".join(traceback.format_exception(error.value))


def test_a_path_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="UTF-8"):
        storage_url(None, tmp_path / os.fsdecode(b"\xff"))


@pytest.mark.parametrize(
    "url, shown",
    [
        (f"u:{SECRET}@h/d", "u@h/d"),
        (f"u:{SECRET}%40%2F@h:5432/d", "u@h:5432/d"),
        (f"u%40x:{SECRET}@h/d", "u%40x@h/d"),
        (f"h/d?user=u&password={SECRET}", "h/d?user=u"),
        (f"h/d?password={SECRET}%26&sslmode=require", "h/d?sslmode=require"),
        (f"h/d?sslpassword={SECRET}&passfile=/{SECRET}", "h/d"),
        (f"h/d?options=-c%20x={SECRET}", "h/d"),
        ("postgres@/d?host=/tmp/x", "postgres@/d?host=/tmp/x"),
        ("[::1]:5/d", "[::1]:5/d"),
    ],
)
def test_what_may_be_printed_of_a_url(url, shown):
    assert without_password(storage_url(f"postgresql://{url}", None)) == f"postgresql://{shown}"


def test_a_url_that_was_not_checked_is_not_printed_either():
    assert without_password(f"postgresql+psycopg://u:{SECRET}@h:x/d") == "postgresql://..."


@pytest.mark.parametrize("name", ["nas", "tpe-3_b", "4.5 bits", "a+b=c", "größe", "実験"])
def test_names_of_studies(name):
    assert check_study_name(name) == name


NO_NAMES = (
    *("", ".", "..", ".hidden", "a/b", "a\\b", "a\nb", "a\n[x]\ny = 1", "a\x1b[2J", "[red]a", " a"),
    *("a ", "a.", "~", "a'b", 'a"b', "search.db-wal", "x" * 201, "ä" * 101, "a\u202eb"),
)


@subcases("name", NO_NAMES)
def test_what_is_no_name_of_a_study(name):
    with pytest.raises(ConfigError, match="expected letters, digits") as error:
        check_study_name(name)
    assert str(error.value).isprintable()


ODD = st.text(alphabet="@:/?#&%=+ \\[]'\"aé\n", max_size=6)
PLACES = (
    "postgresql://u:{}@h/d",
    "postgresql://{}@h/d",
    "postgresql://u:{}@h:5432/d?sslmode=require",
    "postgresql://h/d?user=u&password={}",
    "postgresql://h/d?sslpassword={}&host=x",
    "postgresql://h?password={}",
    "postgres://u:{}@",
    "postgresql+psycopg://u:{}@[::1]/d",
    "postgresql:u:{}@h/d",
    "mysql://u:{}@h/d",
)


@given(st.sampled_from(PLACES), ODD, ODD, ODD, st.booleans())
def test_no_part_of_a_password_is_printed(place, before, middle, after, is_quoted):
    """Whatever it is made of, and where it stands: as a name it is one, of the user."""
    password = f"{before}BEGINS{middle}ENDS{after}"
    given_url = place.format(quote_plus(password) if is_quoted else password)
    try:
        told = without_password(storage_url(given_url, None))
    except ConfigError as error:
        told = "".join(traceback.format_exception(error))
    if "u:" in place or "password" in place:
        assert "BEGINS" not in told and "ENDS" not in told
    assert is_quoted or "BEGINS" not in told or told.startswith("postgresql://")


@pytest.mark.long
@given(st.text(max_size=20))
def test_a_name_of_a_study_is_a_folder_or_refused(name):
    try:
        check_study_name(name)
    except ConfigError as error:
        assert str(error).isprintable()
    else:
        assert name.isprintable() and (Path("/out") / name).parent == Path("/out")
        assert len(os.fsencode(name)) <= 200 and not set(name) & set("[]'\"\\/")
