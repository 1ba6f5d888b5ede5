"""How the README and the documentation read: length of sentences, and numbers among the words.

Code, tables and what stands in links' targets do not count. The averages of a page are limited; the
README, which strangers read first, also by its longest sentence and by its numbers.

    python scripts/readability.py         # a table; fails above a limit
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WORDS_PER_SENTENCE = 25.0
README_WORDS_PER_SENTENCE, README_LONGEST, README_NUMBERS, README_LINES = 20.0, 35, 3.0, 110

NO_PROSE = re.compile(
    r"^---\n.*?^---\n|^(?P<fence>```|~~~).*?^(?P=fence)|<!--.*?-->|^\$\$.*?\$\$|^\|.*?$|^#.*?$",
    re.DOTALL | re.MULTILINE,
)
CODE = re.compile(r"`[^`]*`|\$[^$\n]+\$")
LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\([^)]*\)")
# of a sentence, an item of a list, or a paragraph; "e.g." and "Fig. 2" do not end one
END = re.compile(
    r"(?<!e\.g)(?<!i\.e)(?<!Fig)(?<!eq)(?<!vs)[.!?](?=\s|$)|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s"
)
NUMBER = re.compile(r"(?<![\w-])[-+−]?\d[\d.,]*(?:e-?\d+)?\s?%?")


class Prose(NamedTuple):
    """What a page's sentences are like."""

    page: str
    words: int
    per_sentence: float
    longest: int
    numbers: float
    """Numbers per 100 words."""
    longest_sentence: str


def sentences(markdown: str) -> Iterator[list[str]]:
    """The words of every sentence; a piece of code is one word."""
    text = NO_PROSE.sub("\n\n", markdown)
    text = LINK.sub(lambda match: match["text"], CODE.sub("code", text))
    for part in END.split(text):
        words = [w for w in re.sub(r"[*_>#()\[\]“”\"]", " ", part).split() if re.search(r"\w", w)]
        if words:
            yield words


def prose(name: str, markdown: str) -> Prose:
    """Figures of one page."""
    all_sentences = list(sentences(markdown))
    words = [word for sentence in all_sentences for word in sentence]
    longest = max(all_sentences, key=len, default=[])
    numbers = len(NUMBER.findall(" ".join(words)))
    return Prose(
        name,
        len(words),
        len(words) / max(1, len(all_sentences)),
        len(longest),
        100 * numbers / max(1, len(words)),
        " ".join(longest),
    )


def problems(page: Prose, lines: int) -> list[str]:
    """What is above a limit."""
    if page.page != "README.md":
        over = page.per_sentence > WORDS_PER_SENTENCE
        return [f"{page.per_sentence:.1f} words in a sentence on average"] if over else []
    limits = [
        (page.per_sentence, README_WORDS_PER_SENTENCE, "words in a sentence on average"),
        (page.longest, README_LONGEST, f"words in: {page.longest_sentence}"),
        (page.numbers, README_NUMBERS, "numbers per 100 words"),
        (lines, README_LINES, "lines"),
    ]
    return [
        f"{value:.4g} {what} (at most {limit:g})" for value, limit, what in limits if value > limit
    ]


def main() -> None:
    """Print a table of all pages; exit 1 if one is above a limit."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    print(f"{'page':44} words  words/sentence  longest  numbers/100 words")
    failed = False
    for path in pages:
        text = path.read_text(encoding="utf-8")
        page = prose(str(path.relative_to(ROOT)), text)
        print(
            f"{page.page:44} {page.words:5d} {page.per_sentence:15.1f} {page.longest:8d} "
            f"{page.numbers:10.1f}"
        )
        for problem in problems(page, text.count("\n")):
            failed = True
            print(f"    {problem}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
