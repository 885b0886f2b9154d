"""Packages with entry points, as pip installs them."""

import sys
from textwrap import dedent

import pytest

from chop.base.plugins import clear_entry_points
from chop.base.plugins import files as plugin_files
from chop.formats import REGISTRY
from chop.search.registry import SAMPLERS


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes packages as pip leaves them: `install("mypkg", "0.3", source, points by group)`."""
    names, before = [], [(registry, set(registry)) for registry in (REGISTRY, SAMPLERS)]

    def make(package, version, source, points):
        folder = tmp_path / package
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(dedent(source))
        info = folder / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        lines = [
            line
            for group, rows in points.items()
            for line in (f"[chop.{group}]", *(f"{name} = {place}" for name, place in rows.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(folder)
        names.append(package)
        clear_entry_points()
        plugin_files._installed_version.cache_clear()

    yield make
    monkeypatch.undo()
    clear_entry_points()
    plugin_files._installed_version.cache_clear()
    for package in names:
        sys.modules.pop(package, None)
    for registry, known in before:
        for name in set(registry) - known:
            del registry[name]
