"""Check a built site: nothing is loaded from another machine, and every link leads somewhere.

`mkdocs build --strict` checks the links of Markdown; this checks the HTML that came out.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """What a page loads and links to, and the anchors that it has."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.images_without_text = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read one tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.loads += [values[name] for name in values if (tag, name) in LOADED]
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.images_without_text += tag == "img" and not values.get("alt")


def problems(site: Path) -> list[str]:
    """All that is wrong with a built site, one line each."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} loads {url}" for url in page.loads if urlsplit(url).netloc]
        if page.images_without_text:
            found.append(f"{where} has {page.images_without_text} images without a text")
        if where.name == "404.html":  # its links begin at the root of the site
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where} links to {link}, which is not there")
                continue
            anchor = unquote(parts.fragment)
            if anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{where} links to {link}, which has no such anchor")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]).resolve())
    print("\n".join(wrong) or "the site is whole")
    sys.exit(bool(wrong))
