"""`python -m chop.cli`."""

from chop.cli import main

main()
