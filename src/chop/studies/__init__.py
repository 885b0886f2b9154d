"""Studies on the measuring engine: what `chop bench` compares."""
