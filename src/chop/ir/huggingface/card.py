"""Model card: the README.md of a saved folder with loading instructions."""

from __future__ import annotations

from collections import Counter

from torch import nn

FILE = "README.md"
MARK = "tags: [chop, quantized]"
"""Tag of cards written by chop."""
CARD = """---
library_name: transformers
{mark}
---

# {name}, quantized by chop

{contents} Loading needs `pip install mase-chop`:

```python
import chop  # transformers reads the formats after it
from transformers import {name}

model = {name}.from_pretrained("FOLDER")
```

Without that import transformers ignores the formats, and draws these weights at random with a
warning. `chop export FOLDER --to TARGET` writes the model for engines that do not have chop.
"""


def model_card(model: nn.Module) -> str:
    """Returns the card of a model with quantized layers."""
    from chop.ir.huggingface.stored import quantized_leaves
    from chop.nn.hadamard import Rotated

    labels = (layer.spec.weight.label for _, layer in quantized_leaves(model))
    counts = Counter(labels).most_common()
    formats = ", ".join(f"{label} in {count} modules" for label, count in counts)
    rotated = sum(isinstance(module, Rotated) for module in model.modules())
    contents = [f"Weights are codes of number formats: {formats}."] if counts else []
    contents += [f"Hadamard matrices rotate the inputs of {rotated} layers."] if rotated else []
    return CARD.format(mark=MARK, name=type(model).__name__, contents=" ".join(contents))
