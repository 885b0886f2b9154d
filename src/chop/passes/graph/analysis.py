"""The passes by MASE's path `chop.passes.graph.analysis`, and by the files that it has there."""

from chop.aliases import alias_modules
from chop.passes.graph import __dir__ as __dir__
from chop.passes.graph import __getattr__ as __getattr__

alias_modules(
    __name__,
    """
    add_metadata.add_common_metadata add_metadata.add_hardware_metadata
    add_metadata.add_software_metadata autosharding.autosharding hardware.parse_synth_rpt
    hardware.run_cosim init_metadata pruning.calculate_natural_sparsity
    pruning.calculate_sparsity pruning.hook_inspector quantization.calculate_avg_bits
    report.report_graph report.report_node runtime.runtime_analysis
    statistical_profiler.profile_statistics verify.verify
    """,
)
alias_modules("chop.passes.graph.utils", "utils", below=__name__)
