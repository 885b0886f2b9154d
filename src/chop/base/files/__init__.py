"""Files: atomic writes, locks, temporary names, and size-limited reading of documents."""

from chop.base.files.atomic import (
    atomic_file,
    atomic_files,
    atomic_new_file,
    build_lock,
    discard_older,
    is_readable_file,
    latest,
    record_writes,
    recording_writes,
    settle,
    shared_lock,
    staged_files,
)
from chop.base.files.folders import atomic_folder, recover_folder, recover_folders
from chop.base.files.pictures import Picture
from chop.base.files.refusals import make_folder, names_of_files, writing
from chop.base.files.writers import append_line, write_csv, write_json, write_text

__all__ = [
    "Picture",
    "append_line",
    "atomic_file",
    "atomic_files",
    "atomic_folder",
    "atomic_new_file",
    "build_lock",
    "discard_older",
    "is_readable_file",
    "latest",
    "make_folder",
    "names_of_files",
    "record_writes",
    "recording_writes",
    "recover_folder",
    "recover_folders",
    "settle",
    "shared_lock",
    "staged_files",
    "write_csv",
    "write_json",
    "write_text",
    "writing",
]
