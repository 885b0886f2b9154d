"""Pipelines: lists of passes that run in sequence.

`Pipeline(stages)(mg, out=...)` -> graph and results of each pass; a killed run resumes;
`CompressionPipeline()(mg, pass_args={...})` quantizes, then prunes, like MASE's;
`AutoPipelineForDistributedInference` shards by a plan.
"""

from chop.pipelines.auto import (
    AutoPipeline,
    AutoPipelineForDistributedInference,
    CompressionPipeline,
)
from chop.pipelines.pipeline import Pipeline
from chop.pipelines.stages import Stage

__all__ = [
    "AutoPipeline",
    "AutoPipelineForDistributedInference",
    "CompressionPipeline",
    "Pipeline",
    "Stage",
]
