"""Model card: the README.md of a folder that transformers reads, with metadata for the hub."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from chop.base.files import write_text
from chop.base.files.reading import read_text
from chop.base.hub import hub_file
from chop.base.installed import __version__, version
from chop.errors import ConfigError
from chop.nn.packed import PackedOperator

FILE = "README.md"
METHOD = "chop"
TAGS = (METHOD, "quantized")
MARK = re.compile(r"<!-- Written by chop\. Edited cards stay\. SHA-256 (\w+) -->\n?$")
"""Last line of cards, with a digest of the text above it."""
FIRST_MARK = "---\nlibrary_name: transformers\ntags: [chop, quantized]\n---\n"
"""Beginning of cards of version 0.1, which have no digest, but the last line of `OWN`."""
METADATA = ("license", "license_name", "license_link", "base_model")
"""Metadata of the base model's card that its quantized model shares."""
PACKAGES = {"gptq": "gptqmodel"}
"""Packages by which transformers reads a folder, if they are not named like the method."""
BASE, ARCHITECTURE, FORMAT = "base model", "architecture", "format"
BITS, SIZE, VERSIONS = "bits per weight", "size of the weights", "versions"
COMPUTED = (BASE, ARCHITECTURE, FORMAT, BITS, SIZE, VERSIONS)
"""Rows of the table that are computed for each folder."""
METHOD_ROW, CALIBRATION, COMMAND = MAKING = ("method", "calibration data", "command")
"""Rows on the making of a model."""
HEAD = ("| | |", "| --- | --- |")
"""First lines of the table."""
OWN = """Loading needs `pip install mase-chop`:

```python
import chop  # transformers reads the formats after it
from transformers import {name}

model = {name}.from_pretrained("FOLDER")
```

Without that import transformers ignores the formats, and draws these weights at random with a
warning. `chop export FOLDER --to TARGET` writes the model for engines that do not have chop.
"""
OTHER = """The folder has the layout of {method}. Engines with support for it load it as it is:

```
vllm serve FOLDER
```

{python}"""
BY_TRANSFORMERS = """transformers needs `pip install {package}`:

```python
from transformers import {name}

model = {name}.from_pretrained("FOLDER")
```
"""
BY_CHOP = """transformers does not read this layout, chop does (`pip install mase-chop`):

```python
from chop.models import load_model

model = load_model("FOLDER")
```
"""


@dataclass(frozen=True)
class CardFacts:
    """Facts about a saved model that its files do not contain.

    Attributes:
        rows: further rows of the card's table, text by name. Empty texts are omitted.
        base: folder or hub name of the float model. "" takes the one that transformers loaded.
        formats: formats of the weights, and the number of modules in each.
        bits: average bits per parameter; None if unknown.
    """

    rows: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    formats: str = ""
    bits: float | None = None

    def with_model(self, model: nn.Module) -> CardFacts:
        """Returns the facts with the formats of a model with quantized layers, and their bits."""
        from chop.ir.huggingface.stored import quantized_leaves
        from chop.nn.hadamard import Rotated

        weights = (layer.spec.weight for _, layer in quantized_leaves(model))
        counts = Counter(weight.label for weight in weights if not weight.is_identity)
        texts = [f"{label} in {count} modules" for label, count in counts.most_common()]
        rotated = sum(isinstance(module, Rotated) for module in model.modules())
        texts += [f"inputs of {rotated} layers rotated by Hadamard matrices"] if rotated else []
        bits = _average_bits(model)
        base = self.base or getattr(getattr(model, "config", None), "name_or_path", "")
        return CardFacts(self.rows, base, ", ".join(texts), bits)


def write_card(folder: Path, facts: CardFacts, place: Path | None = None) -> None:
    """Writes the card of a folder. A card that somebody else wrote or edited stays.

    Args:
        folder: complete folder of a model.
        facts: facts about the model.
        place: later location of the folder, which may have a card. Default: `folder`.
    """
    present = (folder if place is None else place) / FILE
    if not present.exists() or is_own(present):
        write_text(folder / FILE, card_text(folder, facts))
    elif place is not None and present.is_file():
        shutil.copyfile(present, folder / FILE)


def add_rows(folder: Path, rows: Mapping[str, str], base: str, place: Path | None = None) -> None:
    """Writes the card of a folder again with further rows. A card of somebody else stays.

    Args:
        folder: folder with a card.
        rows: see `CardFacts`.
        base: see `CardFacts`.
        place: see `write_card`.
    """
    if is_own(folder / FILE):
        present = card_rows(folder / FILE)
        bits = present.get(BITS)
        facts = CardFacts(rows, base, present.get(FORMAT, ""), float(bits) if bits else None)
        write_card(folder, facts, place)


def extend_table(card: Path, rows: Mapping[str, str]) -> None:
    """Adds measured rows to the table of a card that chop wrote; the rest of the card stays.

    Args:
        card: file of the card.
        rows: text by name; replaces rows with the same name.
    """
    text = read_text(card, "config").replace("\r\n", "\n")
    before, _, rest = MARK.sub("", text).partition("\n".join(HEAD))
    _, _, after = rest.partition("\n\n")
    table = {**card_rows(card), **rows}
    table[VERSIONS] = table.pop(VERSIONS)  # stays last
    write_text(card, _signed(f"{before}{_table(table)}\n{after}"))


def is_own(card: Path) -> bool:
    """Returns True if chop wrote a card and nobody has edited it."""
    try:
        text = read_text(card, "config", errors="replace").replace("\r\n", "\n")
    except (OSError, ConfigError):  # a folder, a pipe, or far larger than a card of chop
        return False
    mark = MARK.search(text)
    if mark is None:
        return text.startswith(FIRST_MARK) and text.endswith(OWN.splitlines(keepends=True)[-1])
    return mark[1] == _digest(text[: mark.start()])


def card_rows(card: Path) -> dict[str, str]:
    """Returns the rows of the table in a card of chop; {} if there is none."""
    try:
        text = read_text(card, "config", errors="replace")
    except (OSError, ConfigError):
        return {}
    rows = re.findall(r"^\| (\w[^|]*) \| (.+) \|$", text, re.M) if MARK.search(text) else []
    return {name: value.replace(r"\|", "|").replace(r"\<", "<") for name, value in rows}


def card_text(folder: Path, facts: CardFacts) -> str:
    """Returns the card of a model's folder."""
    config = json.loads(read_text(folder / "config.json", "config"))
    name = (config.get("architectures") or ["AutoModel"])[0]
    method = (config.get("quantization_config") or {}).get("quant_method", METHOD)
    metadata = _metadata(facts.base, config, method)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    base = card_rows(Path(facts.base) / FILE).get(BASE) or Path(facts.base).name
    table = {
        BASE: str(metadata.get("base_model") or base),
        ARCHITECTURE: name,
        FORMAT: facts.formats,
        **{label: facts.rows.get(label, "") for label in (METHOD_ROW, CALIBRATION)},
        BITS: "" if facts.bits is None else f"{facts.bits:.2f}",
        SIZE: f"{size / 1000:,.1f} kB",
        **facts.rows,
        VERSIONS: _versions(),
    }
    how = OWN.format(name=name) if method == METHOD else _use_of_others(name, method)
    parts = [
        f"---\n{_yaml(metadata)}---\n",
        f"# {_cell(base or name)}, quantized by chop\n",
        _table(table),
        how,
    ]
    return _signed("\n".join(parts) + "\n")


def _use_of_others(name: str, method: str) -> str:
    """Returns how to load a folder with the layout of another tool."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    python = BY_TRANSFORMERS if method in AUTO_QUANTIZATION_CONFIG_MAPPING else BY_CHOP
    package = PACKAGES.get(method, method)
    return OTHER.format(method=method, python=python.format(name=name, package=package))


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {label} | {_cell(text)} |" for label, text in rows.items() if text]
    return "\n".join([*HEAD, *lines, ""])


def _signed(text: str) -> str:
    return f"{text}<!-- Written by chop. Edited cards stay. SHA-256 {_digest(text)} -->\n"


def _average_bits(model: nn.Module) -> float:
    """Returns the average bits of a parameter as stored; shared ones count once."""
    stored = {id(x): (x.numel(), 8.0 * x.element_size()) for x in model.parameters()}
    for module in (x for x in model.modules() if isinstance(x, PackedOperator)):
        for operand, shape in module.packed_shapes.items():
            codes = module.encoded(operand).codes
            stored[id(codes)] = shape.numel(), module.packed_bits(operand)
    return sum(count * bits for count, bits in stored.values()) / sum(n for n, _ in stored.values())


def _metadata(base: str, config: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Returns the metadata of a card for the hub."""
    own: dict[str, Any] = {"library_name": "transformers", "tags": [*TAGS]}
    own["tags"] += [method] if method != METHOD else []
    if isinstance(license_name := config.get("license"), str):
        own["license"] = license_name
    if not base:
        return own
    folder, is_on_hub = Path(base).expanduser(), _is_cached(base)
    card = hub_file(base, FILE) if is_on_hub else folder / FILE
    own |= _base_metadata(card)
    if is_on_hub:
        own |= {"base_model": base, "base_model_relation": "quantized"}
    return own


def _base_metadata(card: Path | None) -> dict[str, str]:
    """Returns the license in a card, and the model that it names as its base."""
    import yaml

    if card is None or not card.is_file():
        return {}
    try:
        text = read_text(card, "card", errors="replace")
        head = re.match(r"---\s*\n(.*?)^---\s*$", text, re.S | re.M)
        content = yaml.safe_load(head[1]) if head else None
    except (OSError, ConfigError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    content = content if isinstance(content, dict) else {}
    lists = {key: x if isinstance(x, list) else [x] for key, x in content.items()}
    first = {key: lists[key][0] for key in METADATA if lists.get(key)}
    return {key: x for key, x in first.items() if isinstance(x, str)}


def _is_cached(name: str) -> bool:
    """Returns True if a name is that of a hub repository whose model was loaded here."""
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except ValueError:  # a path
        return False
    return not Path(name).expanduser().exists() and isinstance(cached, str)


def _yaml(metadata: Mapping[str, Any]) -> str:
    from huggingface_hub import ModelCardData

    return f"{ModelCardData(**metadata).to_yaml()}\n"


def _versions() -> str:
    others = (f"{name} {version(name)}" for name in ("torch", "transformers"))
    return ", ".join([f"chop {__version__}", *others])


def code(text: str) -> str:
    """Returns a code span of Markdown, whose fence is longer than the backticks in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{text}{space}{fence}"


def _cell(text: str) -> str:
    """Returns text in one line without cell borders, and without HTML outside of code spans."""
    line = " ".join(text.split()).replace("|", r"\|")
    return line if "`" in line else line.replace("<", r"\<")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
