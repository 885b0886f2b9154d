"""Configuration: user dicts and TOML files become frozen dataclasses, once.

Nothing else in `chop` reads string keys. `parse` checks every key and every type and says which
key was meant; after it, settings are attributes.
"""

from chop.config.arguments import with_checked_arguments, with_checked_init, with_checked_names
from chop.config.conversion import MORE, check_fields, check_keys, convert, parse
from chop.config.files import ignoring, load_config, load_toml, renamed, without_na
from chop.config.ranges import Range
from chop.config.texts import check_text

__all__ = [
    "MORE",
    "Range",
    "check_fields",
    "check_keys",
    "check_text",
    "convert",
    "ignoring",
    "load_config",
    "load_toml",
    "parse",
    "renamed",
    "with_checked_arguments",
    "with_checked_init",
    "with_checked_names",
    "without_na",
]
