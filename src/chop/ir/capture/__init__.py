"""HOW A MODEL BECOMES A GRAPH: its own Python, run once and written down."""
