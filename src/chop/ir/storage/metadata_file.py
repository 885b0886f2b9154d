"""Metadata file: node metadata as JSON, for the same graph in another process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from chop.base.files import write_text
from chop.base.files.documents import read_json
from chop.errors import CheckpointError, GraphError, did_you_mean
from chop.ir.metadata import MaseMetadata, Provenance, attach
from chop.ir.storage.allowed import AllowList
from chop.ir.storage.codec import Decoder, Encoder

FORMAT = "chop metadata"
VERSION = 1


def write_metadata(nodes: Iterable[fx.Node], provenance: Sequence[Provenance], path: Path) -> int:
    """Writes the metadata of every node without tensors.

    Args:
        nodes: the nodes of a graph.
        provenance: passes applied to the graph.
        path: the file.
    Returns: the number of nodes with metadata.
    """
    metadata = {node.name: node.meta["mase"] for node in nodes if "mase" in node.meta}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "passes": [step.name for step in provenance if step.name.endswith("_analysis_pass")],
        "nodes": Encoder(functions=False).leniently(metadata),
    }
    write_text(path, json.dumps(document, indent=1))
    return len(metadata)


def read_metadata(nodes: Iterable[fx.Node], provenance: list[Provenance], path: Path) -> int:
    """Reads metadata and replaces those of the nodes with the same names.

    Args:
        nodes: the nodes of the graph.
        provenance: passes applied to the graph; those of the file are added.
        path: the file.
    Returns: the number of nodes with metadata.

    Raises:
        CheckpointError: if the file is missing, broken or of another kind.
        GraphError: if it belongs to another graph.
    """
    document = _parse(path)
    decode = Decoder(AllowList(()))
    decoded = {name: decode(plain) for name, plain in document["nodes"].items()}
    by_name = {node.name: node for node in nodes}
    for name, metadata in decoded.items():
        if name not in by_name:
            raise GraphError(
                f"'{path}' belongs to another graph: no node '{name}': "
                f"{did_you_mean(name, by_name)}"
            )
        if not isinstance(metadata, MaseMetadata):
            raise CheckpointError(f"'{path}' is malformed: node '{name}' has no metadata.")
    for name, metadata in decoded.items():
        by_name[name].meta["mase"] = metadata
    attach(by_name.values())
    done = {step.name for step in provenance}
    provenance += [Provenance(n, f"read from {path}") for n in document["passes"] if n not in done]
    return len(decoded)


def _parse(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = read_json(path, "metadata")
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CheckpointError(f"'{path}' is not a metadata file of chop: {error}.") from None
    is_ours = document.get("format") == FORMAT
    if not is_ours or document.get("version") != VERSION:
        raise CheckpointError(
            f"'{path}' is not a metadata file of chop, version {VERSION}; "
            "write it with save_node_meta_param_interface_pass."
        )
    if not isinstance(document.get("nodes"), dict) or not _are_names(document.get("passes")):
        raise CheckpointError(f"'{path}' is malformed: expected nodes and passes.")
    return document


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
