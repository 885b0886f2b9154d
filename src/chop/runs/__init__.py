"""Runs of jobs: manifest, journal of finished points, and identity of processes.

A job writes a manifest (`start`, `read_manifest`) and, if it consists of points, a `Journal`.
"""

from chop.runs.environment import processor_name, read_environment
from chop.runs.journal import Journal, compute_key, has_numbers
from chop.runs.manifest import MANIFEST, Artifact, Manifest, read_manifest
from chop.runs.outcome import Outcome
from chop.runs.process import process_id, process_status
from chop.runs.run import Run, start
from chop.runs.serialization import PLAIN, as_json, class_name, without_secrets

__all__ = [
    "MANIFEST",
    "PLAIN",
    "Artifact",
    "Journal",
    "Manifest",
    "Outcome",
    "Run",
    "as_json",
    "class_name",
    "compute_key",
    "has_numbers",
    "process_id",
    "process_status",
    "processor_name",
    "read_environment",
    "read_manifest",
    "start",
    "without_secrets",
]
