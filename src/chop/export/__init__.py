"""Export to files of other engines: one module per target and per reader."""

from chop.base.elsewhere import refuse_calls

__all__: list[str] = []

refuse_calls(__name__, "MaseGraph(model).export(path), or passes.export_interface_pass")
