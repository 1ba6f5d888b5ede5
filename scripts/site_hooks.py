"""Hooks of mkdocs: what lies outside docs/, formulas and pictures become part of the site.

Pages are written so that they read well on GitHub too: links are those of the repository, formulas
are GitHub's, pictures are files. The site has the README as its first page, and every file of the
repository that a page links to.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()([^)\s#]+)?((?:#[^)\s]*)?\))")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
BLOCK = re.compile(r"^```math\n(.*?)\n```$", re.M | re.S)
INLINE = re.compile(r"\$`(.+?)`\$", re.S)
TABLE_CODE = re.compile(r"(?<=\| )`[^`\n]*`(?= \|)")
"""A cell that is code: GitHub wants its bars escaped, Python-Markdown does not."""
PICTURE = re.compile(r"!\[[^\]]*\]\((\w+\.svg)\)")
CODE = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".cff": "yaml", "": "text", ".toml": "toml"}
ASSETS = {".json", ".jsonl", ".csv", ".svg", ".png", ".txt"}
NOT_SEARCHED = ("benchmarks/", "results/", "recipes/", "src/", "CHANGELOG")

_sources: dict[str, str] = {}
"""Path in the repository of every page, by its path in the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the README, the notebooks, and what pages link to outside docs/."""
    _sources.clear()
    for file in files.documentation_pages():
        _sources[file.src_uri] = f"docs/{file.src_uri}"
    notebooks = [f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    todo = ["README.md", *notebooks, *_sources.values()]
    seen = set(todo)
    while todo:
        source = todo.pop()
        if not source.startswith("docs/"):
            for file in _added(source, config):
                files.append(file)
        for target in _targets(source):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links become those of the site, formulas MathML, pictures part of the page."""
    uri = page.file.src_uri
    if uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    source = _sources.get(uri, "")
    folder = posixpath.dirname(source)
    text = BLOCK.sub(_formula, markdown)
    text = _outside_code(text, lambda part: _linked(part, source, uri))
    text = TABLE_CODE.sub(lambda m: m[0].replace(r"\|", "|"), text)
    text = INLINE.sub(lambda m: f"<span>{convert(' '.join(m[1].split()))}</span>", text)
    return PICTURE.sub(lambda m: _inlined(ROOT / folder / m[1]) or m[0], text)


def site_uri(source: str) -> str:
    """Where a file of the repository is in the site."""
    path = Path(source)
    if source == "README.md":
        return "index.md"
    if path.suffix == ".ipynb":
        return source.removesuffix(".ipynb") + ".md"
    if source.startswith("docs/") or path.suffix in {".md", *ASSETS}:
        return source.removeprefix("docs/")
    return f"{source}/README.md" if (ROOT / source).is_dir() else f"{source}.md"


def _added(source: str, config: Any) -> Iterable[File]:
    """The file of the site for one outside docs/."""
    path, uri = ROOT / source, site_uri(source)
    _sources[uri] = source
    if path.suffix in ASSETS or path.suffix == ".md":
        yield File.generated(config, uri, abs_src_path=str(path))
    else:
        yield File.generated(config, uri, content=_as_markdown(source))


def _as_markdown(source: str) -> str:
    path = ROOT / source
    if path.is_dir():
        names = [each.name for each in sorted(path.iterdir()) if each.suffix in CODE]
        return f"# {source}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        return notebook_markdown(json.loads(text))
    return f"# {source}\n\n```{CODE[path.suffix]}\n{text}```\n"


def notebook_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: its text, code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return "".join(data["image/svg+xml"])
    if "image/png" in data:
        return f'<img alt="what the code drew" src="data:image/png;base64,{data["image/png"]}">'
    text = "".join(output.get("text", data.get("text/plain", [])))
    return f"```text\n{text.rstrip()}\n```"


def _targets(source: str) -> Iterable[str]:
    """Files outside docs/ that a page links to."""
    path = ROOT / source
    if not path.is_dir() and path.suffix not in (".md", ".ipynb"):
        return
    text = _as_markdown(source) if path.suffix != ".md" else path.read_text("utf-8")
    for found in LINK.finditer(FENCED.sub("", text)):
        target = _resolved(source, found[2] or "")
        if target and not target.startswith("docs/") and (ROOT / target).exists():
            yield target


def _resolved(source: str, target: str) -> str:
    """The file of the repository that a link means; empty if it means none."""
    if not target or "://" in target or target.startswith("mailto:"):
        return ""
    base = source if (ROOT / source).is_dir() else posixpath.dirname(source)
    path = posixpath.normpath(posixpath.join(base, target))
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).is_file() else path


def _formula(found: re.Match[str]) -> str:
    """A formula on a line of its own, which scrolls where it is too wide."""
    drawn = convert(found[1], display="block")
    return f'<div class="formula" tabindex="0" role="group" aria-label="formula">{drawn}</div>'


def _linked(text: str, source: str, uri: str) -> str:
    def link(found: re.Match[str]) -> str:
        target = _resolved(source, found[2] or "")
        if not target:
            return found[0]
        here = posixpath.relpath(site_uri(target), posixpath.dirname(uri) or ".")
        return found[1] + here + found[3]

    return LINK.sub(link, text)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = FENCED.split(text)
    parts[::2] = [change(part) for part in parts[::2]]
    return "".join(parts)


def _inlined(path: Path) -> str:
    """A schematic within the page, so that it has the colors of the page; others stay images."""
    text = path.read_text("utf-8") if path.is_file() else ""
    if 'class="schematic"' not in text:
        return ""
    drawing = re.sub(r"<style>.*?</style>", _style, text, flags=re.S).replace("\n", "")
    frame = 'class="schematic-frame" tabindex="0" role="group" aria-label="what the method does"'
    return f"<div {frame}>{drawing}</div>"


def _style(found: re.Match[str]) -> str:
    """The style without its colors, which docs/site.css has for both color schemes."""
    lines = found[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith((".schematic{", "@media")))
