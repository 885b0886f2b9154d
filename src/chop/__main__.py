"""`python -m chop`."""

from chop.cli import main

main()
