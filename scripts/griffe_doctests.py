"""Extension of griffe: doctests and `::` in docstrings become code blocks of the page."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^( *)>>> .*\n(?:\1\S.*\n?)*", re.M)


class Doctests(Extension):
    """Put a fence around every doctest, which Markdown reads as a quotation; drop `::`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            text = re.sub(r"^ *::$", "", obj.docstring.value, flags=re.M)
            obj.docstring.value = DOCTEST.sub(_fenced, re.sub(r"::$", ":", text, flags=re.M))


def _fenced(found: re.Match[str]) -> str:
    indent, code = found[1], found[0].rstrip("\n")
    return f"{indent}```pycon\n{code}\n{indent}```\n"
