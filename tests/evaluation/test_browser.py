"""Reports in a browser: accessible by axe, light and dark, wide and narrow, whole on paper."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from smoothtune.cli import app
from smoothtune.report.page import render
from smoothtune.study.records import Records
from smoothtune.study.report.comparison import table_of_runs
from smoothtune.study.report.page import page_content
from smoothtune.study.report.plots import study_plots

pytestmark = pytest.mark.slow
STUDY = Path(__file__).parents[2] / "results" / "few-sample"
PAPER = 1032  # pixels between the margins of A4 landscape


@pytest.fixture(scope="module")
def evaluation(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, seed in (("one", 42), ("two", 43)):
        few = ["--num-resamples", "20", "--max-diagnostic-samples", "8", "--seed", str(seed)]
        arguments = ["evaluate", str(tiny_folder / "tuned"), "--all", *few]
        found = CliRunner().invoke(app, [*arguments, "--output-dir", str(folder / name)])
        assert found.exit_code == 0, found.output
    page = folder / "page.html"
    runs = [f"plain={folder / 'one'}", f"again={folder / 'two'}"]
    assert CliRunner().invoke(app, ["report", *runs, "--to", str(page)]).exit_code == 0
    return page


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed study with its plots."""
    content = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    runs = table_of_runs(content["rows"])
    plots = study_plots(runs, content["methods"], Records(STUDY), Console(quiet=True))
    page = tmp_path_factory.mktemp("pages") / "study.html"
    page.write_text(render("study.html.jinja", page_content(content, plots)), encoding="utf-8")
    return page


@pytest.fixture(params=["evaluation", "study"])
def page(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param).as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(browser, page: str, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    size = {"width": width, "height": 900}
    shown = browser.new_page(color_scheme=scheme, viewport=size, bypass_csp=True)
    shown.goto(page)
    found = Axe().run(shown)
    assert found.violations_count == 0, found.generate_report()
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    shown.close()


def test_paper_shows_everything(browser, page: str) -> None:
    shown = browser.new_page(
        color_scheme="dark", viewport={"width": PAPER, "height": 700}, bypass_csp=True
    )
    shown.goto(page)
    shown.emulate_media(media="print")
    cut = """[...document.querySelectorAll('.wide')].filter(
        box => box.scrollWidth > box.clientWidth + 1 || box.clientHeight + 1 < box.scrollHeight
    ).map(box => box.innerText.slice(0, 80))"""
    assert shown.evaluate(cut) == []
    hidden = """[...document.querySelectorAll('details table')].filter(
        table => !table.checkVisibility({contentVisibilityAuto: true})).length"""
    assert shown.evaluate("document.querySelectorAll('details table').length") > 0
    assert shown.evaluate(hidden) == 0
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    shown.close()
