"""HOW A GRAPH LOOKS: boxes and lines as an SVG file."""
