"""Run the notebooks from start to end and keep what they print. Run by `make notebooks`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parent.parent / "notebooks"


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with its outputs, after all cells ran.

    Args:
        path: the notebook.
        folder: where it runs and writes.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as sockets:
        # Files in place of ports: another process can take a free port before the kernel has it.
        sockets_of_kernel = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
            config=Config(KernelManager=sockets_of_kernel),
        ).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # times of execution
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            cell.execution_count = None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
                if output.output_type == "stream":
                    output.text = as_left(output.text)
    return notebook


def as_left(text: str) -> str:
    """What a terminal shows in the end of what a command wrote, without bars of progress."""
    text = re.sub(r"[^\n]*(?:\x1b\[2K|\r(?!\n))", "", text)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    kept = [line.rstrip() for line in lines if not re.search(r"[━╸╺] +\d+/", line)]
    return "\n".join(kept) + "\n"


def main() -> None:
    """Run and write them all, or those that are named."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
