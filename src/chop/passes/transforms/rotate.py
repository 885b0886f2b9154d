"""Hadamard rotation of a decoder's activations, which removes outliers and keeps the function."""

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
        block: maximum number of channels per rotation, such as the group size of a format; default,
            the largest available Hadamard matrix.
        merge: merges rotations of the residual stream and of values into weights, for models like
            Llama, Mistral, Qwen and Gemma. False rotates the inputs of all linear layers at run
            time, for any model.
        online: rotates inputs at run time that weights cannot rotate, such as those of `down_proj`.
        seed: seed of the random signs of merged rotations.
    """

    block: Annotated[int | None, Range(2)] = None
    merge: bool = True
    online: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "rotate_transform_pass")
        if not (self.merge or self.online):
            raise ConfigError("rotate_transform_pass: expected merge or online, got neither.")


@graph_pass(config=RotateConfig, requires=("add_common_metadata_analysis_pass",))
def rotate_transform_pass(mg: MaseGraph, config: RotateConfig) -> dict[str, Any]:
    """Rotates the inputs of a decoder's linear layers, which spreads outlier channels.

    The residual stream x becomes x Q. The weights of the embedding and of layers that write or read
    the stream absorb Q and the gains of norms in between. Values of attentions are also rotated by
    weights, separately in each head. Inputs of other layers, such as `down_proj`, are rotated at
    run time by a `Hadamard` before the layer, whose weight is rotated to match. Q has random signs
    and a Hadamard matrix per block of channels. The float function does not change.

    An output layer that is tied to the embedding gets its own weight, since it absorbs the gain of
    the last norm. Run this pass before `quantize_transform_pass`.

    Returns:
        residual: paths of the layers that read or write the rotated stream.
        values: reader path by the path of the layer that computes the values.
        online: block size by path of a layer with a rotated input.
        untied: paths of layers that no longer share the embedding's weight.
        skipped: reasons by path for layers whose input is not rotated.

    Raises:
        GraphError: if the stream cannot be rotated (the message names the node), or a layer is
            quantized, pruned, adapted or shared.

    Source: QuaRot, Ashkboos et al. 2024, arXiv:2404.00456; R1 and R2 of SpinQuant, Liu et al. 2024,
    arXiv:2405.16406.

    Example config::

        {"block": 64, "online": False}
    """
    if not config.merge:
        return asdict(rotate_online(mg, config.block))
    return asdict(rotate(mg, config.block, config.seed, config.online))
