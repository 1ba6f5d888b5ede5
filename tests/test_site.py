"""The documentation site: what its hooks make of a page, and what the check of the site finds."""

import functools
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from smoothtune.methods import METHODS

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
check_site = pytest.importorskip("check_site")
hooks = pytest.importorskip("site_hooks")

ROOT = Path(__file__).parent.parent


def page_of(uri, markdown, monkeypatch, source=None):
    monkeypatch.setitem(hooks._sources, uri, source or f"docs/{uri}")
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
    return hooks.on_page_markdown(markdown, page), page


@pytest.mark.parametrize(
    ("uri", "source", "link", "expected"),
    [
        ("methods/lnsr.md", None, "../choosing.md#x", "../choosing.md#x"),
        ("methods/lnsr.md", None, "../../README.md", "../index.md"),
        ("choosing.md", None, "../results/few-sample.md", "results/few-sample.md"),
        ("concepts.md", None, "../examples/new_method.py", "examples/new_method.py.md"),
        ("index.md", "README.md", "docs/study.md", "study.md"),
        ("index.md", "README.md", "examples", "examples/README.md"),
        ("CONTRIBUTING.md", "CONTRIBUTING.md", "CHANGELOG.md", "CHANGELOG.md"),
        (
            "notebooks/one-line.md",
            "notebooks/one-line.ipynb",
            "how-fragile.ipynb",
            "how-fragile.md",
        ),
        ("index.md", "README.md", "https://a.example/b.md", "https://a.example/b.md"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(uri, source, link, expected, monkeypatch):
    text, _ = page_of(uri, f"[a]({link})\n\n```md\n[a]({link})\n```\n", monkeypatch, source)
    assert text == f"[a]({expected})\n\n```md\n[a]({link})\n```\n"  # code stays


def test_formulas_become_mathml(monkeypatch):
    markdown = "```math\n\\frac{1}{K} \\|x\\|\n```\n\nof $`\\alpha`$, `$5`\n"
    text, _ = page_of("methods/lnsr.md", markdown, monkeypatch)
    block, inline = re.findall("<math.*?</math>", text)
    assert 'display="block"' in block
    assert "<mfrac>" in block
    assert "&#x003B1;" in inline
    assert "`$5`" in text


def test_bars_in_cells_of_code_lose_their_backslash(monkeypatch):
    text, _ = page_of("settings.md", "| `a` | `1 \\| null` | \\|\\|x\\|\\| |\n", monkeypatch)
    assert text == "| `a` | `1 | null` | \\|\\|x\\|\\| |\n"


def test_schematics_are_part_of_the_page_and_have_its_colors(monkeypatch):
    text, _ = page_of("methods/lnsr.md", "![noise](lnsr.svg)\n", monkeypatch)
    assert "<svg" in text
    assert "prefers-color-scheme" not in text


def test_results_are_not_searched(monkeypatch):
    _, page = page_of("results/few-sample.md", "text", monkeypatch, "results/x.md")
    assert page.meta == {"search": {"exclude": True}}


def test_notebooks_show_code_and_what_it_printed():
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}],
        },
    ]
    text = hooks.notebook_markdown({"cells": cells})
    assert text == "# Title\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"


def test_every_method_is_in_the_navigation():
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert [name for name in METHODS if f"'methods/{name}.md'" not in nav] == []


def test_what_is_wrong_with_a_site(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="b/#here">b</a><a href="b/#gone">b</a><a href="c/">c</a>'
        '<script src="https://cdn.example/x.js"></script><img src="b/index.html">',
        "utf-8",
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<p id="here">', "utf-8")
    assert check_site.problems(tmp_path) == [
        "index.html loads https://cdn.example/x.js",
        "index.html has 1 images without a text",
        "index.html links to b/#gone, which has no such anchor",
        "index.html links to c/, which is not there",
    ]


KINDS_OF_PAGES = ("", "methods/lnsr/", "settings/", "api/", "notebooks/one-line/", "choosing/")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def served_site(tmp_path_factory):
    """The address of the site, built and served."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    subprocess.run([*command, "--site-dir", str(folder)], cwd=ROOT, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("path", KINDS_OF_PAGES)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_on_the_site(browser, served_site, path, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    size = {"width": width, "height": 900}
    shown = browser.new_page(color_scheme=scheme, viewport=size)
    shown.goto(served_site + path)
    shown.wait_for_selector(".md-search[aria-label]", state="attached")
    found = Axe().run(shown)
    assert found.violations_count == 0, found.generate_report()
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.close()
