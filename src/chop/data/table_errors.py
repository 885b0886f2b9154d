"""Explanations of the errors with which pandas, pyarrow and `datasets` refuse tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from chop.base.files.library_errors import get_reason

HEADER = "The first line must have the column names: remove titles and comments above it."
EMPTY = re.compile("corresponds to no data|No columns to parse|because the first 0 values")
"""Messages about a table without rows."""
SCRIPT = re.compile(r"Dataset scripts are no longer supported, but found (\S+)")


def explain_table_error(error: BaseException) -> str:
    """Returns the reason that a table cannot be read, with a remedy."""
    text = " ".join(map(str, error_chain(error)))
    own = get_reason(error.__cause__ or error)
    for pattern, explanation in _EXPLANATIONS:
        if (match := pattern.search(text)) is not None:
            if callable(explanation):
                return explanation(match)
            return explanation.format(*match.groups(), own=own)
    return _explain_columns(text) if "must have the same columns" in text else own


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain_columns(text: str) -> str:
    differing = re.search(r"there are (.*\}\))", text)
    file = re.search(r"generating data using\s+(\S.*?)(?:,|\n|$)", text)
    where = f"'{Path(file[1]).name}'" if file else "one of them"
    listed = differing[1] if differing else "other columns"
    return f"its files have different columns: {where} has {listed}; use the same columns in all."


def _explain_fraction(match: re.Match[str]) -> str:
    return (
        f"a column whose first rows are whole numbers has {float(match[1]):g} further down; write "
        "its first number with a decimal point, such as 1.0."
    )


def _explain_quote(match: re.Match[str]) -> str:
    line = int(match[1]) + 1  # pandas counts from 0
    return f'a quote (") on or after line {line} is opened and not closed; close or remove it.'


_EXPLANATIONS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"Expected 1 fields in line (\d+), saw (\d+)"),
        f"line {{}} has {{}} columns, and the first line has fewer. {HEADER}",
    ),
    (
        re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)"),
        "line {1} has {2} columns, expected {0}; put texts that contain the separator into quotes "
        '("...").',
    ),
    (
        re.compile("codec can't decode"),
        "its bytes are not UTF-8; save it as UTF-8 (in a spreadsheet, 'CSV UTF-8').",
    ),
    (EMPTY, "it has no rows; expected column names and a line per row, or a record per line."),
    (
        re.compile("at least one example"),
        "it has no rows; expected a text or a record per line.",
    ),
    (  # of pyarrow, about rows of a later chunk whose type differs from the first chunk's
        re.compile(r"Failed to parse string: ('.*') as a scalar of type"),
        "a column whose first rows are numbers has the text {} further down; correct or remove "
        "that row. A header repeated inside the file is such a row.",
    ),
    (re.compile(r"Float value (\S+) was truncated converting to int"), _explain_fraction),
    (re.compile(r"EOF inside string starting at row (\d+)"), _explain_quote),
    (
        re.compile("JSON parse error|decoding"),
        "{own}; expected a list of records or a record per line, with names in double quotes. The "
        "file may be cut off.",
    ),
    (
        re.compile("int too large"),
        "a column has whole numbers beyond 64 bits; write them with a decimal point.",
    ),
    (re.compile("zstd not supported"), "this needs zstandard: pip install zstandard."),
    (
        SCRIPT,
        "it contains {}, which has the name of the folder and would be a script that reads it; "
        "rename or remove it.",
    ),
)
"""Patterns of messages, in this order, with the explanation or the function that writes it."""
