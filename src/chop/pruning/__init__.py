"""What the pruning pass and gradual pruning share: settings, layers, evidence, narrowing."""
