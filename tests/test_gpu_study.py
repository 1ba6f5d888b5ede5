"""scripts/gpu_study.sh, with a study that is only played."""

import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_study.sh"
STUDY = """#!/bin/sh
for last; do :; done  # the number of jobs
mkdir -p {out}/cells {out}/models
touch {out}/cells/a.json {out}/models/weights
{then}
"""


@pytest.mark.parametrize(
    ("then", "status"), [("exec sleep 60", 0), ("exit 3", 3), ("[ $last = 15 ]", 0)]
)
def test_what_is_done_is_packed_however_the_study_ends(tmp_path, then, status):
    out, python = tmp_path / "out", tmp_path / "python"
    python.write_text(STUDY.format(out=out, then=then))
    python.chmod(0o755)
    ended = subprocess.run(
        ["sh", SCRIPT, "fit", "data", out, "1"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == status, ended.stderr
    assert "1 runs are done" in ended.stdout
    with tarfile.open(f"{out}.tar.gz") as packed:
        assert "out/cells/a.json" in packed.getnames()
        assert not any("weights" in name for name in packed.getnames())


def test_a_study_that_does_nothing_leaves_nothing(tmp_path):
    out, missing = tmp_path / "out", str(tmp_path / "no-python")
    command = ["sh", SCRIPT, "fit", "data", out, "1"]
    ended = subprocess.run(command, env={"PATH": "/usr/bin:/bin", "PYTHON": missing})
    assert ended.returncode == 127
    assert list(tmp_path.iterdir()) == []
