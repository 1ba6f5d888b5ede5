"""How pages read is measured as it says."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

readability = pytest.importorskip("readability")

PAGE = """# A title does not count

One sentence of six words here. Another one,
over [two lines](https://a.example/1/2/3), with `code(1, 2, 3)`!

- an item
- a second item of it

| a table | 1 |
|---|---|

```python
print("Code is no prose. 1 2 3")
```

It costs 2.5 % and 30 times as much, e.g. with LoRA.
"""


def test_sentences() -> None:
    assert [len(words) for words in readability.sentences(PAGE)] == [6, 7, 2, 5, 11]


def test_figures_of_a_page() -> None:
    page = readability.prose("docs/page.md", PAGE)
    assert page.words == 31
    assert page.per_sentence == pytest.approx(31 / 5)
    assert page.longest == 11
    assert page.numbers == pytest.approx(100 * 2 / 31)


def test_limits() -> None:
    long = " ".join(["word"] * 30) + "."
    page = readability.prose("docs/page.md", long)
    assert readability.problems(page, 1) == ["30.0 words in a sentence on average"]
    page = readability.prose("README.md", "3 words here. " * 40)
    (numbers, lines) = readability.problems(page, 200)
    assert numbers.startswith("33.33 numbers")
    assert lines.startswith("200 lines")


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_pages_are_within_the_limits(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert readability.problems(readability.prose(page, text), text.count("\n")) == []
