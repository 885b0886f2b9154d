from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from chop.actions.compress.job import CompressConfig
from chop.actions.search.settings import PrecisionConfig
from chop.actions.sweep.grid import parse_range
from chop.base.trust import trust_named
from chop.cli.settings_file import read_settings
from chop.config import load_toml, parse
from chop.errors import ConfigError
from chop.formats import Integer
from tests.subcases import subcases


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5


@dataclass(frozen=True)
class Settings:
    width: int
    mode: Literal["fast", "exact"] = "fast"
    inner: Inner = field(default_factory=Inner)
    sizes: tuple[int, ...] = ()
    out: Path | None = None
    maybe: Inner | None = None
    table: dict[str, int] = field(default_factory=dict)


def test_a_table_in_which_settings_stand_is_named():
    with pytest.raises(ConfigError, match=r"settings are at the top level, without \[compress\]"):
        parse(CompressConfig, {"compress": {"model": "mlp"}}, "run.toml")


def test_nested_values_become_what_the_hints_say():
    given = {"width": 3, "inner": {"rate": 1}, "sizes": [1, 2], "out": "x", "table": {"a": 1}}
    before = dict(given)
    settings = parse(Settings, given)
    assert settings == Settings(3, "fast", Inner(1), (1, 2), Path("x"), None, {"a": 1})
    assert given == before
    assert parse(Settings, settings) is settings


def test_numbers_of_numpy_become_plain_ones():
    given = {"width": np.int64(3), "inner": {"rate": np.float32(0.5)}, "sizes": list(np.arange(3))}
    settings = parse(Settings, given)
    assert settings == Settings(3, "fast", Inner(0.5), (0, 1, 2))
    kinds = {type(settings.width), type(settings.inner.rate), *map(type, settings.sizes)}
    assert kinds == {int, float}
    made = Integer(np.int64(8), np.int32(4))
    assert made == Integer(8, 4) and type(made.width) is int and made.key == Integer(8, 4).key
    assert parse_range(np.int64(8), "widths") == (8,)
    assert parse_range(np.arange(2, 4), "widths") == (2, 3)
    for value in (np.bool_(True), np.float64(3.0), np.array([3])):
        with pytest.raises(ConfigError, match="width: expected int, got"):
            parse(Settings, {"width": value})


@subcases(
    "given, message",
    [
        ({}, "missing key 'width'"),
        ({"width": 1, "mdoe": "fast"}, "did you mean 'mode'"),
        ({"width": 1, "mode": "fastt"}, "did you mean 'fast'"),
        ({"width": 1.0}, r"Settings.width: expected int, got 1.0 \(float\)"),
        ({"width": True}, "expected int"),
        ({"width": None}, "got nothing"),
        ({"width": 1, "inner": {"rat": 1}}, "Settings.inner: unknown key 'rat'"),
        ({"width": 1, "sizes": [1, "a"]}, r"sizes\[1\]: expected int"),
        ({"width": 1, "out": 3}, "expected Path or None"),
        ({"width": 1, "out": ""}, r"Settings.out: got an empty text; is a variable not set"),
        ({"width": 1, "out": "a\0b"}, r"Settings.out: got 'a\\x00b', expected a text without null"),
        ([1], "expected a mapping"),
        ({"width": 1, "sizes": 4}, "sizes: expected a list of int, got 4"),
        ({"width": 1, "maybe": {"rat": 1}}, "Settings.maybe: unknown key 'rat'"),
    ],
)
def test_mistakes_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        parse(Settings, given)


@dataclass(frozen=True)
class Tables:
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    budgets: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"layers": {"fc": "4.auto"}},
            r"layers\.fc: expected a table of names and values, each str",
        ),
        ({"layers": 4}, "a table of names and values, each a table of names and values"),
        ({"budgets": [1]}, "budgets: expected a table of names and values, each float"),
    ],
)
def test_tables_are_expected_in_words(given, message):
    with pytest.raises(ConfigError, match=message):
        parse(Tables, given)


def test_toml_files(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("width = 4\n[inner]\nrate = 0.25\n")
    assert parse(Settings, load_toml(file)).inner.rate == 0.25
    file.write_text("width = 8\n", encoding="utf-8-sig")
    assert load_toml(file) == {"width": 8}
    file.write_text("width = = 4")
    with pytest.raises(ConfigError, match="not valid TOML.*line 1"):
        load_toml(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        load_toml(tmp_path / "none.toml")


def test_tuples_whose_members_have_types_of_their_own():
    @dataclass(frozen=True)
    class Wires:
        streams: tuple[tuple[str, int], ...]

    assert parse(Wires, {"streams": [["a", 3], ("b", 4)]}).streams == (("a", 3), ("b", 4))
    with pytest.raises(ConfigError, match=r"streams\[1\]\[1\]: expected int, got 'x'"):
        parse(Wires, {"streams": [["a", 3], ["b", "x"]]})
    with pytest.raises(ConfigError, match=r"streams\[0\]: expected 2 values, got 3"):
        parse(Wires, {"streams": [["a", 3, 4]]})


@pytest.mark.parametrize(
    "where, settings, told",
    [
        ("chop compress", {"qat": "none"}, r"^chop compress --qat: got 'none': choose from: all, "
         r"worst\. --qat-epochs 0 measures without QAT\.$"),
        ("run.toml", {"qat": "off"}, r"^run\.toml\.qat: got 'off': .* --qat-epochs 0 measures"),
        ("chop compress", {"max_drop": "x"}, "^chop compress --max-drop: expected float, got 'x'"),
        ("", {"bench_seconds": None}, "^CompressConfig.bench_seconds: expected float"),
    ],
)  # fmt: skip
def test_settings_of_a_command_are_named_as_options(where, settings, told):
    with pytest.raises(ConfigError, match=told):
        parse(CompressConfig, settings, where)


@pytest.mark.parametrize(("name", "words"), [("a\0b", "null bytes"), ("a\udcff", "UTF-8")])
@pytest.mark.parametrize("setting", ["out", "model"])
def test_a_name_that_no_file_can_have_is_refused(setting, name, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        parse(CompressConfig, {"model": "mlp", setting: name}, "r.toml")


@pytest.mark.parametrize("setting", ["out", "storage"])
def test_a_place_with_a_null_byte_in_a_file_is_refused(setting, tmp_path):
    (tmp_path / "r.toml").write_text(f'{setting} = "a\\u0000b"\n')
    with pytest.raises(ConfigError, match="null bytes"):
        read_settings(tmp_path / "r.toml", {}, PrecisionConfig)


def test_unknown_keys_of_a_file_are_named_before_the_code_that_it_names(tmp_path):
    (tmp_path / "r.toml").write_text('import = "mymod"\nmodel = "net.py:Net"\nweigths = "w.pt"\n')
    with trust_named({}), pytest.raises(ConfigError, match="'weigths': did you mean 'weights'"):
        read_settings(tmp_path / "r.toml", {}, CompressConfig)


def test_a_file_of_layers_of_another_model_is_refused(tmp_path):
    (tmp_path / "r.toml").write_text('model = "mlp"\noverrides = ["a=8.4"]\nseed = 3\n')
    with pytest.raises(ConfigError, match="r.toml is for the model 'mlp', to which overrides in"):
        read_settings(tmp_path / "r.toml", {"model": "cnn"}, CompressConfig)
    given = {"model": "cnn", "overrides": ("conv1=8.4",)}
    assert read_settings(tmp_path / "r.toml", given, CompressConfig) == {**given, "seed": 3}


def test_a_file_of_json_is_no_settings_file(tmp_path):
    (tmp_path / "result.json").write_text('{"model": "cnn"}')
    with pytest.raises(ConfigError, match=r"expected TOML, with a line such as .* got a file of J"):
        load_toml(tmp_path / "result.json")
