"""Faults that are planted in sources of the library."""

from dataclasses import replace

import pytest

from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.plan import RTL
from tests.hardware.bench import CompiledBench


def check_fault_is_found(module, old, new, run, folder, monkeypatch):
    """Asserts that a check fails where a text of a module's source was replaced.

    Args:
        module: its name.
        old: what is there once.
        new: what is put in its place.
        run: the check; it takes the folder of the changed source.
        folder: an empty one.
        monkeypatch: takes back what is changed.
    """
    text = (RTL / f"{module}.sv").read_text()
    assert text.count(old) == 1
    (folder / f"{module}.sv").write_text(text.replace(old, new))
    for name, row in list(COMPONENTS.items()):
        monkeypatch.delitem(COMPONENTS, name)
        monkeypatch.setitem(COMPONENTS, name, replace(row, folder=folder))
    monkeypatch.setattr(CompiledBench, "complaints", lambda bench: "")
    with pytest.raises(AssertionError, match="FAIL"):
        run(folder)


def planted(check, faults):
    """Faults that a check has to find: by module and name, a text and what replaces it."""
    by_place = [(*place.split(), *texts) for place, texts in faults.items()]
    return {name: (module, old, new, check) for module, name, old, new in by_place}
