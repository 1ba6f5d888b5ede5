"""Write what the documentation takes from the code: docs/methods.md, the table of docs/support.md.

Run by `make docs`.
"""

import re
from pathlib import Path

from smoothtune.core.support import support_table
from smoothtune.methods.describe import methods_page

DOCS = Path(__file__).parent.parent / "docs"
TABLE = re.compile(r"(?<=<!-- table -->\n\n).*?(?=\n<!-- end of table -->)", re.S)


def pages() -> dict[Path, str]:
    """Every page that holds text from the code, as the code now has it."""
    support = DOCS / "support.md"
    table = support_table()
    return {
        DOCS / "methods.md": methods_page(),
        support: TABLE.sub(lambda _: table, support.read_text("utf-8")),
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, "utf-8")
        print(f"docs/{page.name}")
