"""Graph codec: conversion to plain data and back, with checks before torch.fx sees a file.

torch.fx generates Python code from a graph. Every name that could appear in that code is checked:
node names, inputs, paths, methods and keywords.
"""

from __future__ import annotations

import base64
import json
import keyword
import re
import zlib
from collections.abc import Mapping
from typing import Any

from torch import fx

from chop.base.files.documents import parse_json
from chop.captured.nodes.modes import MODE
from chop.captured.nodes.node_list import NodeRecord, graph_to_nodes, nodes_to_graph
from chop.errors import CheckpointError, ConfigError
from chop.ir.storage.allowed import AllowList
from chop.ir.storage.codec import Decoder, Encoder, Json, NotPlainError

SAVED_METADATA = ("spec", "source", MODE)
# Metadata may unpack to so many bytes, and to so many for each byte that is packed: a small file
# cannot fill the memory. Real metadata packs 10 to 50 times.
METADATA_FREE = 2**20
METADATA_RATIO = 64
ARGUMENTS = (
    *("$node", "$function", "$tuple", "$size", "$set", "$frozenset", "$slice", "$range", "$dict"),
    *("$dtype", "$layout", "$memory_format", "$device", "$float", "$complex", "$ellipsis"),
)
"""Kinds of values that nodes may have as arguments."""
INPUT = re.compile(r"\*{0,2}(?P<name>\w+)")


def encode_graph(graph: fx.Graph, encode: Encoder, encode_metadata: Encoder) -> Json:
    """Returns `nodes`, one entry each, and `classes`, the class of every source module.

    Args:
        graph: the graph.
        encode: encoder of arguments.
        encode_metadata: encoder of metadata; entries without a plain form are dropped.

    Raises:
        CheckpointError: if an argument has no plain form, or a function cannot be imported.
    """
    try:
        records = graph_to_nodes(graph)
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"a node cannot be exported: {error}.") from None
    pairs = zip(records, graph.nodes, strict=True)
    nodes = [_encode_node(record, node, encode, encode_metadata) for record, node in pairs]
    stacks = [node.meta.get("nn_module_stack") or {} for node in graph.nodes]
    classes = {path: entry[-1] for stack in stacks for path, entry in stack.items()}
    return {"nodes": nodes, "classes": encode_metadata.leniently(classes)}


def _encode_node(
    record: NodeRecord, node: fx.Node, encode: Encoder, encode_metadata: Encoder
) -> Json:
    try:
        entry: Json = {
            "op": record.op,
            "name": record.name,
            "target": record.target,
            "args": [encode(value) for value in record.args],
            "kwargs": {name: encode(value) for name, value in record.kwargs.items()},
        }
    except NotPlainError as error:
        raise CheckpointError(
            f"node '{node.name}' cannot be exported: one of its arguments is {error}."
        ) from None
    if node.meta.get("nn_module_stack"):
        entry["inside"] = list(node.meta["nn_module_stack"])
    meta = {name: node.meta[name] for name in SAVED_METADATA if name in node.meta}
    if "mase" in node.meta:
        meta["mase"] = node.meta["mase"]
    entry["meta"] = encode_metadata.leniently(meta)
    return {name: value for name, value in entry.items() if value not in ({}, [])}


def fold_metadata(document: dict[str, Json]) -> dict[str, Json]:
    """Compresses the metadata of all nodes into one entry, `metadata`.

    Metadata beyond the compression ratio that readers accept stay with the nodes.
    """
    nodes = [node for node in document["nodes"] if "mase" in node.get("meta", {})]
    metadata = {node["name"]: node["meta"]["mase"] for node in nodes}
    text = json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode()
    packed = zlib.compress(text, 9)
    if len(text) > _room(packed):
        return document
    for node in nodes:
        del node["meta"]["mase"]
    return {**document, "metadata": base64.b64encode(packed).decode()}


def _room(packed: bytes) -> int:
    return METADATA_FREE + METADATA_RATIO * len(packed)


def unfold_metadata(document: dict[str, Json]) -> None:
    """Moves the metadata back to the nodes.

    Raises:
        CheckpointError: if it cannot be unpacked.
    """
    packed = base64.b64decode(document.get("metadata", ""), validate=True)
    if not packed:
        return
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, max_length=_room(packed))
        if unpacking.unconsumed_tail:
            raise CheckpointError(
                f"the checkpoint's metadata unpacks to more than {len(text)} bytes, too much for "
                "its size."
            )
        metadata = parse_json(text)
    except ConfigError as error:
        raise CheckpointError(f"the checkpoint's metadata is malformed: {error}.") from None
    except zlib.error as error:
        raise CheckpointError(f"the checkpoint's metadata cannot be unpacked: {error}.") from None
    for node in document["nodes"]:
        if node["name"] in metadata:
            node.setdefault("meta", {})["mase"] = metadata[node["name"]]


def decode_graph(
    plain: Json, paths: Mapping[str, set[str]], allowed: AllowList, decode: Decoder
) -> fx.Graph:
    """Decodes a graph of `encode_graph`.

    Args:
        plain: the nodes and classes.
        paths: module path -> names that `get_attr` may read.
        allowed: functions and methods that nodes may call.
        decode: decoder of arguments and metadata.

    Raises:
        CheckpointError: if a node is malformed, or names something missing or not allowed.
    """
    records = [_decode_node(entry, decode) for entry in plain["nodes"]]
    known: set[str] = set()
    for record in records:
        _check_node(record, paths, allowed)
        known.add(record.name)
    if len(known) != len(records):
        raise CheckpointError("the checkpoint has two nodes with the same name.")
    graph = nodes_to_graph(records, allowed.function)
    for entry, node in zip(plain["nodes"], graph.nodes, strict=True):
        node.meta.update({name: decode(value) for name, value in entry.get("meta", {}).items()})
        if "inside" in entry:
            stack = {path: (path, str(plain["classes"].get(path))) for path in entry["inside"]}
            node.meta["nn_module_stack"] = stack
    return graph


def _check_argument(plain: Json) -> None:
    """Raises CheckpointError for a value whose text is not valid in generated code.

    torch.fx writes the text of every argument, however long that takes.
    """
    if isinstance(plain, list):
        for item in plain:
            _check_argument(item)
    elif isinstance(plain, dict):
        tag = next(iter(plain), "")
        if len(plain) == 1 and tag.startswith("$") and tag not in ARGUMENTS:
            raise CheckpointError(f"the checkpoint has an argument of the unknown kind '{tag}'.")
        for item in plain.values():
            _check_argument(item)


def _decode_node(entry: Json, decode: Decoder) -> NodeRecord:
    _check_argument([entry.get("args"), entry.get("kwargs")])
    args = tuple(decode(value) for value in entry.get("args", ()))
    kwargs = {name: decode(value) for name, value in entry.get("kwargs", {}).items()}
    return NodeRecord(str(entry["op"]), str(entry["name"]), str(entry["target"]), args, kwargs)


def _check_node(record: NodeRecord, paths: Mapping[str, set[str]], allowed: AllowList) -> None:
    for name in (record.name, *record.kwargs):
        if not _is_name(name):
            raise CheckpointError(
                f"the checkpoint has a node or keyword with the invalid name {name!r}."
            )
    op, target = record.op, record.target
    if op == "placeholder":
        fits = INPUT.fullmatch(target)
        if not fits or not _is_name(fits["name"]):
            raise CheckpointError(f"the checkpoint has an input with the invalid name {target!r}.")
    elif op == "call_method":
        allowed.method(target)
        if "key" in record.kwargs:
            raise CheckpointError(f"node '{record.name}' calls '{target}' with a key function.")
    elif op == "call_module":
        if not target or target not in paths:
            raise CheckpointError(f"node '{record.name}' calls the missing module '{target}'.")
    elif op == "get_attr":
        owner, _, name = target.rpartition(".")
        if name not in paths.get(owner, ()):
            raise CheckpointError(f"node '{record.name}' reads '{target}', which is missing.")
    elif op == "call_function":
        allowed.check_call(target, record.args, record.kwargs)
    elif op != "output":
        raise CheckpointError(f"node '{record.name}' has the unknown kind '{op}'.")


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
