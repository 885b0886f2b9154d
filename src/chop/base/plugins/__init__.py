"""Plugins: registries that other packages extend through entry points.

A package declares an extension in its `pyproject.toml`, in the group of its kind, by a name and the
location of an object (specification: packaging.python.org, "Entry points specification"):

    [project.entry-points."chop.formats"]
    int_group = "mypkg.formats:IntGroup"

Entry points are imported when their name is used, or when all rows of a group are needed.
"""

from chop.base.plugins.files import missing, naming_packages, other_version
from chop.base.plugins.modules import (
    Extensions,
    check_module_name,
    import_modules,
    import_options,
    import_plugin,
    import_setting,
    imported_modules,
)
from chop.base.plugins.packages import (
    GROUPS,
    OWN,
    PROGRAM,
    REGISTRIES,
    PluginError,
    clear_entry_points,
    described,
    entry_points,
    get_package,
    get_root,
    names_in_use,
    plugins_in_use,
    unknown_groups,
)
from chop.base.plugins.registry import Registry, find_registry

__all__ = [
    "GROUPS",
    "OWN",
    "PROGRAM",
    "REGISTRIES",
    "Extensions",
    "PluginError",
    "Registry",
    "check_module_name",
    "clear_entry_points",
    "described",
    "entry_points",
    "find_registry",
    "get_package",
    "get_root",
    "import_modules",
    "import_options",
    "import_plugin",
    "import_setting",
    "imported_modules",
    "missing",
    "names_in_use",
    "naming_packages",
    "other_version",
    "plugins_in_use",
    "unknown_groups",
]
