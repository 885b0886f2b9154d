"""Public names: modules list those that `public_names.txt` has, and every name can be imported."""

import importlib
import re
from pathlib import Path

LISTED = Path(__file__).with_name("public_names.txt")
PAGE = Path(__file__).parents[1] / "docs" / "stability.md"


def modules():
    """Modules that the page promises."""
    text = PAGE.read_text().partition("\n- ")[0]
    return list(dict.fromkeys(re.findall(r"`(chop[\w.]*)`", text)))


def test_no_name_goes_or_comes_by_accident():
    found = {
        f"{module}:{name}"
        for module in modules()
        for name in importlib.import_module(module).__all__
    }
    listed = LISTED.read_text().split()
    assert listed == sorted(listed), "keep the list sorted"
    gone, new = sorted({*listed} - found), sorted(found - {*listed})
    assert not gone, f"names that programs rely on are gone; deprecate them for a release: {gone}"
    assert not new, f"new public names; add them to {LISTED.name} where that is meant: {new}"


def test_every_name_is_there():
    for line in LISTED.read_text().split():
        module, _, name = line.partition(":")
        assert hasattr(importlib.import_module(module), name), line
