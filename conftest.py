"""Which modules have no doctests to collect here."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["src/chop/kernels/triton/*.py"]
