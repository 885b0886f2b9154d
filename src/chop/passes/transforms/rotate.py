"""Rotates the activations of a decoder by Hadamard matrices, without changing the function."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from chop.config import Range, check_fields
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.rotation.engine import rotate, rotate_online


@dataclass(frozen=True)
class RotateConfig:
    """Settings of `rotate_transform_pass`.

    Attributes:
        block: at most so many channels are rotated together, such as the group size of a format;
            None: as many as a Hadamard matrix is known for.
        merge: whether weights take over rotations of the residual stream and of values, of models
            as Llama, Mistral, Qwen and Gemma. False rotates what every linear layer reads while
            the model runs, of any model.
        online: whether inputs that no weight can rotate, those of `down_proj`, are rotated while
            the model runs.
        seed: of the random signs of the rotations that weights take over.
    """

    block: Annotated[int | None, Range(2)] = None
    merge: bool = True
    online: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "rotate_transform_pass")
        if not (self.merge or self.online):
            raise ConfigError("rotate_transform_pass: expected merge or online, got none of both.")


@graph_pass(config=RotateConfig, requires=("add_common_metadata_analysis_pass",))
def rotate_transform_pass(mg: MaseGraph, config: RotateConfig) -> dict[str, Any]:
    """Rotates what linear layers of a decoder read, so that no channel stands out.

    The residual stream x becomes x Q: the embedding, the layers that write the stream and those
    that read it take Q over, and the gains of the norms between. Values of attentions are rotated
    head by head, by weights as well. What other layers read, such as `down_proj`, is rotated while
    the model runs, by a `Hadamard` before the layer; its weight is rotated for that. Q has random
    signs and a Hadamard matrix for each block of channels. The float function stays.

    An output layer that is tied to the embedding gets a weight of its own, since the gain of the
    last norm goes into it. It runs before `quantize_transform_pass`.

    Returns:
        residual: paths of the layers that read or write the rotated stream.
        values: by the path of the layer that makes values, that of the layer that reads them.
        online: by the path of a layer, the block in which its input is rotated.
        untied: paths of the layers that shared the embedding's weight.
        skipped: by the path of a layer, why its input is not rotated.

    Raises:
        GraphError: the model is none whose stream can be rotated (what reads or writes it is
            named), or a layer is quantized, pruned, adapted or shared.

    Source: QuaRot, Ashkboos et al. 2024, arXiv:2404.00456; R1 and R2 of SpinQuant, Liu et al. 2024,
    arXiv:2405.16406.
    """
    if not config.merge:
        return asdict(rotate_online(mg, config.block))
    return asdict(rotate(mg, config.block, config.seed, config.online))
