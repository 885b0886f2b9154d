"""Lists of passes, run one after the other.

`Pipeline(stages)(mg, out=...)` -> graph and what each pass found; a killed run continues;
`CompressionPipeline()(mg, pass_args={...})` quantizes, then prunes, as MASE's does;
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
