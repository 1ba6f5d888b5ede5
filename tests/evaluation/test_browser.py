"""Reports in a browser: accessible by axe, light and dark, wide and narrow, whole on paper."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from helpers.study_files import COMMON
from smoothtune.cli import app
from smoothtune.study.config import load_study
from smoothtune.study.run import run_study

pytestmark = pytest.mark.slow
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
def study(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two sizes with its plots."""
    folder = tmp_path_factory.mktemp("study")
    file = folder / "study.yaml"
    file.write_text(
        f"data: {inputs / 'data'}\nmodel: {inputs / 'model'}\n{COMMON}"
        "methods: [plain, lnsr, r3f, mixout]\nseeds: [0, 1]\nmax_train_samples: [8, 16]\n"
        "evaluate: [effect]\nnoise_curve: true\n",
        encoding="utf-8",
    )
    run_study(load_study(file), folder / "out", jobs=1, console=Console(quiet=True))
    return folder / "out" / "report.html"


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
