"""Promises of SECURITY.md that no other test is about."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.config.evaluation import Settings
from smoothtune.config.run import load_config
from smoothtune.evaluation import evaluate
from smoothtune.run.train import train

ROOT = Path(__file__).parents[1]
WITHOUT_NETWORK = """
import socket, sys
class Blocked(socket.socket):
    def connect(self, address):
        raise SystemExit(f"connects to {address}")
    connect_ex = sendto = connect
def resolved(*arguments, **options):
    raise SystemExit(f"looks up {arguments}")
socket.socket, socket.getaddrinfo, socket.create_connection = Blocked, resolved, resolved
from smoothtune.cli import main
main()
"""


def options(folder: Path) -> dict:
    found = {"task": "quality", "text_columns": ["text"], "data": str(folder / "data")}
    return found | {"model": str(folder / "model"), "output_dir": str(folder / "out")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bert(tmp_path / "model")
    tiny_data(tmp_path / "data")
    return tmp_path


@pytest.mark.slow
def test_local_data_and_models_need_no_network(folder: Path) -> None:
    """Offline switches are off: nothing is asked of the hub because nothing there is named."""
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in offline}
    environment |= {"HF_HOME": str(folder / "hf"), "SMOOTHTUNE_CACHE": str(folder / "cache")}
    for arguments in (
        ["train", "--task", "quality", "--text-column", "text", "--data", folder / "data"]
        + ["--model", folder / "model", "--output-dir", folder / "out", "--max-steps", "1"],
        ["evaluate", folder / "out", "--output-dir", folder / "evaluation"],
    ):
        command = [sys.executable, "-c", WITHOUT_NETWORK, *map(str, arguments)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_have_the_users_umask(umask: int, folder: Path) -> None:
    before = os.umask(umask)
    try:
        train(load_config(None, ["max_steps=1"], options(folder)), console=Console(quiet=True))
        settings = Settings(model=str(folder / "out"), output_dir=str(folder / "evaluation"))
        evaluate(settings, console=Console(quiet=True))
    finally:
        os.umask(before)
    for name in ("out", "evaluation"):
        for path in (folder / name).rglob("*"):
            expected = 0o666 & ~umask if path.is_file() else 0o777 & ~umask
            assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.slow
def test_no_secret_of_the_environment_is_in_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, "s3cr3t")
    text = ["max_steps=1", "save_strategy=steps", "save_steps=1"]
    train(load_config(None, text, options(folder)), console=Console(quiet=True))
    settings = Settings(model=str(folder / "out"), output_dir=str(folder / "evaluation"))
    evaluate(settings, console=Console(quiet=True))
    written = [p for name in ("out", "evaluation") for p in (folder / name).rglob("*")]
    assert len(written) > 8
    for path in filter(Path.is_file, written):
        assert b"s3cr3t" not in path.read_bytes(), path


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/reliability.md"])
def test_every_test_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 15
    for file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.M), (file, test)


def test_the_block_of_the_network_blocks() -> None:
    code = WITHOUT_NETWORK.split("from smoothtune")[0]
    code += "socket.create_connection(('127.0.0.1', 9))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert "looks up" in found.stderr
    assert socket.socket.__module__ == "socket"
