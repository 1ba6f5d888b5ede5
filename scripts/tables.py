"""Markdown that is written from the code: tables, and text with what Markdown would eat escaped."""

import re


def table(titles: list[str], rows: list[list[str]]) -> str:
    """A table, one line for each row."""
    lines = [titles, ["---"] * len(titles)]
    lines += [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escaped(text: str) -> str:
    """The text with what Markdown would eat escaped; code in backticks and bullets stay."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<!^)(?<!\n)[*]|[~<\[\]]|\b_|_\b", r"\\\g<0>", p) for p in parts[::2]]
    return "".join(parts)
