"""Projections that engines fuse into one matrix, such as query, key and value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

JOINED: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
    ("w1", "w3"),
)
"""Names of siblings; source: `packed_modules_mapping` of the models of vLLM 0.32."""


def joined_layers(paths: Iterable[str]) -> list[tuple[str, ...]]:
    """Layers that vLLM and SGLang join, in the order of their paths.

    >>> joined_layers(["a.k_proj", "a.o_proj", "a.q_proj", "b.up_proj"])
    [('a.k_proj', 'a.q_proj')]

    Returns: groups of two layers and more.
    """
    groups: dict[tuple[str, int], list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        for number, names in enumerate(JOINED):
            if name in names:
                groups.setdefault((parent, number), []).append(path)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def note_on_joined(schemes: Mapping[str, Any], floats: Collection[str]) -> list[str]:
    """Says which joined layers do not have one scheme; empty where all do.

    Args:
        schemes: by path of a coded layer.
        floats: paths of the layers that stay floats.
    """
    groups = joined_layers([*schemes, *floats])
    differing = [group for group in groups if len({schemes.get(path) for path in group}) > 1]
    if not differing:
        return []
    group = differing[0]
    parent, names = group[0].rpartition(".")[0], [path.rpartition(".")[2] for path in group]
    more = f" and those of {len(differing) - 1} more modules" if len(differing) > 1 else ""
    return [
        f"vLLM and SGLang join {', '.join(names)} of {parent}{more}, which have different formats "
        "here, and do not load this folder: give them one format (chop search precision --joined "
        "searches such recipes); transformers loads it"
    ]
