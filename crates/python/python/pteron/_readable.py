"""Reports as text for people, and as HTML for notebooks."""

import html
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

MAX_ROWS = 40


class Section(NamedTuple):
    """A part of a report: a line, and a table below it if it has columns. Numbers are aligned to the right."""

    title: str
    columns: Tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()


class Readable:
    """A dataclass whose `str` is a report, and which notebooks show as tables."""

    def _sections(self) -> Iterator[Section]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(line for section in self._sections() for line in _text(section))

    def _repr_html_(self) -> str:
        return "".join(_html(section) for section in self._sections())


def cell(value: Any) -> str:
    """A value as text without characters that act on a terminal."""
    if value is None:
        return ""
    if isinstance(value, float):
        text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    else:
        text = str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cut(rows: Sequence[Sequence[Any]]) -> Tuple[List[List[str]], int]:
    return [[cell(value) for value in row] for row in rows[:MAX_ROWS]], max(0, len(rows) - MAX_ROWS)


def _text(section: Section) -> Iterator[str]:
    yield cell(section.title)
    if not section.rows:
        return
    rows, more = _cut(section.rows)
    widths = [max(len(row[i]) for row in [list(section.columns), *rows]) for i in range(len(section.columns))]
    is_number = [all(isinstance(row[i], (int, float, type(None))) for row in section.rows) for i in range(len(widths))]

    def line(row: Sequence[str]) -> str:
        cells = (text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, is_number))
        return ("  " + "  ".join(cells)).rstrip()

    yield line(section.columns)
    for row in rows:
        yield line(row)
    if more:
        yield f"  … {more:,} more"


def _html(section: Section) -> str:
    title = f"<p><b>{html.escape(cell(section.title))}</b></p>"
    if not section.rows:
        return title
    rows, more = _cut(section.rows)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in section.columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    rest = f"<p>… {more:,} more</p>" if more else ""
    return f"{title}<table><tr>{head}</tr>{body}</table>{rest}"
