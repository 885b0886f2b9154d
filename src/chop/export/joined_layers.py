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
"""Names of fused siblings; source: `packed_modules_mapping` of the models of vLLM 0.32."""


def joined_layers(paths: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns groups of two or more layers that vLLM and SGLang fuse, in the order of their paths.

    >>> joined_layers(["a.k_proj", "a.o_proj", "a.q_proj", "b.up_proj"])
    [('a.k_proj', 'a.q_proj')]
    """
    groups: dict[tuple[str, int], list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        for number, names in enumerate(JOINED):
            if name in names:
                groups.setdefault((parent, number), []).append(path)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def note_on_joined(schemes: Mapping[str, Any], floats: Collection[str]) -> list[str]:
    """Returns a note on fused layers with different schemes, or an empty list.

    Args:
        schemes: scheme by path of a coded layer.
        floats: paths of the float layers.
    """
    groups = joined_layers([*schemes, *floats])
    differing = [group for group in groups if len({schemes.get(path) for path in group}) > 1]
    if not differing:
        return []
    group = differing[0]
    parent, names = group[0].rpartition(".")[0], [path.rpartition(".")[2] for path in group]
    more = f" and those of {len(differing) - 1} more modules" if len(differing) > 1 else ""
    return [
        f"vLLM and SGLang fuse {', '.join(names)} of {parent}{more} and cannot load this folder, "
        "because their formats differ: use the same format (chop search precision --joined "
        "searches such recipes); transformers can load it"
    ]
