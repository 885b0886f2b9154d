"""The pages that readers have, README and docs: their code, headings, links and command lines."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
INDEX = ROOT / "docs/index.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
OTHERS = tuple(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))
"""Pages without code for readers, whose links are checked too."""

RESULTS = (ROOT / "benchmarks/RESULTS.md", *sorted((ROOT / "benchmarks/results").glob("*.md")))
"""The page of measurements, and one page for each topic."""
IN_BLOCKS = r"^(?: {4})?chop [^#\n]*"
IN_SENTENCES = r"`(?:chop demo|chop(?: [a-z][\w-]*)*(?: (?:--|\S*/)[^`]*))`"


def get_name(page):
    """`guide/bench` of `docs/guide/bench.md`."""
    return str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


def python_of(page):
    """Its blocks of Python, as one program."""
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))


def prose_of(page):
    """Its text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page):
    """What a link into a page may name: its headings."""
    titles = re.findall(r"^#+ (.*)", prose_of(page), re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def links(page):
    """Files that it links to, pictures too, each with an anchor or an empty text."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def command_lines(page):
    """Title of a section -> its command lines, in their order; of the README in sentences too."""
    found, kind = {}, f"{IN_BLOCKS}|{IN_SENTENCES}" if page == README else IN_BLOCKS
    text = re.sub(r"```python\n.*?```", "", page.read_text(), flags=re.S)
    for section in re.split(r"^#{1,3} ", text, flags=re.M):
        title, text = section.partition("\n")[::2]
        commands = [" ".join(line[0].strip("`").split()) for line in re.finditer(kind, text, re.M)]
        if commands:
            found[title] = commands
    return found
