"""Names in checkpoints: homes that classes and functions had in earlier versions."""

import pytest

from chop.captured.layers.attention import ProjectedAttention
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.module_tree import Scope
from chop.captured.runtime import by_mode
from chop.errors import CheckpointError
from chop.ir.storage.allowed import AllowList, get_reference

CLASSES = {
    "chop.capture.attention:ProjectedAttention": ProjectedAttention,
    "chop.captured.attention:ProjectedAttention": ProjectedAttention,
    "chop.captured.expert_linear:ExpertLinear": ExpertLinear,
    "chop.captured.module_tree:Scope": Scope,
}


@pytest.mark.parametrize("reference", CLASSES)
def test_classes_are_found_by_the_homes_of_earlier_versions(reference):
    allowed = AllowList()
    assert allowed.module_class(reference) is CLASSES[reference]
    assert allowed.module_class(get_reference(CLASSES[reference])) is CLASSES[reference]


def test_functions_are_found_by_the_homes_of_earlier_versions():
    for home in ("chop.capture.runtime", "chop.captured.runtime", "chop.captured.nodes.runtime"):
        assert AllowList().function(f"{home}:by_mode") is by_mode
    with pytest.raises(CheckpointError):
        AllowList().function("chop.captured.runtime:print")
