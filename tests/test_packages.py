"""Packages: each says what it exports."""

import importlib
import pkgutil

import chop
from tests.subcases import subcases

PACKAGES = sorted(
    module.name for module in pkgutil.walk_packages(chop.__path__, "chop.") if module.ispkg
)


@subcases("name", PACKAGES)
def test_a_package_lists_what_it_exports(name):
    package = importlib.import_module(name)
    missing = [public for public in package.__all__ if not hasattr(package, public)]
    assert not missing
