"""Locks, atomic writes and damaged records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from smoothtune import files
from smoothtune.errors import OutputError
from smoothtune.files import (
    LOCK,
    is_owned,
    make_folder,
    open_log,
    owned,
    read_json,
    write_atomic,
)


@pytest.mark.parametrize("name", [LOCK, ".unfinished", "checkpoints", "cells/x.json"])
def test_links_in_an_output_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.write_text("precious")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(OutputError, match=rf"symbolic links \({name}\)"), owned(folder):
        pass
    assert elsewhere.read_text() == "precious"
    assert (folder / name).is_symlink()
    assert not is_owned(folder)


def test_a_link_in_place_of_the_file_or_its_staging_name_is_replaced(tmp_path: Path) -> None:
    elsewhere, file = tmp_path / "elsewhere", tmp_path / "run.json"
    elsewhere.write_text("precious")
    file.symlink_to(elsewhere)
    for old in (f".run.json.{os.getpid()}", f".run.json.{os.getpid()}.partial"):
        (tmp_path / old).symlink_to(elsewhere)
    write_atomic(file, "new")
    assert elsewhere.read_text() == "precious"
    assert file.read_text() == "new"
    assert not file.is_symlink()


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / "log.jsonl").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic"):
        open_log(tmp_path / "log.jsonl")
    assert elsewhere.read_text() == "precious"


@pytest.mark.parametrize("kind", ["text", "folder", "pipe"])
def test_the_lock_of_another_program_stays(kind: str, tmp_path: Path) -> None:
    lock = tmp_path / LOCK
    if kind == "text":
        lock.write_text("mine")
    elif kind == "folder":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    with pytest.raises(OutputError, match="belongs to another program"), owned(tmp_path):
        pass
    assert lock.exists()


def test_a_folder_in_which_nothing_was_written_does_not_stay(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    with pytest.raises(ZeroDivisionError), owned(folder):
        1 / 0  # noqa: B018
    assert not (tmp_path / "new").exists()
    with owned(folder):
        (tmp_path / "new" / "notes.txt").touch()
    assert not folder.exists()
    assert (tmp_path / "new" / "notes.txt").exists()
    folder.mkdir()
    with owned(folder):
        pass
    assert folder.exists()


def test_an_empty_lock_is_used_and_left(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with owned(tmp_path):
        assert is_owned(tmp_path)
    assert (tmp_path / LOCK).read_bytes() == b""


def test_who_waits_for_the_lock_is_the_only_owner_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file removed after its release was that of the next owner, and a third came in."""
    second = FileLock(tmp_path / LOCK)

    class Watched(FileLock):
        def release(self, force: bool = False) -> None:
            super().release(force)
            second.acquire(timeout=0)

    with monkeypatch.context() as patch:
        patch.setattr(files, "FileLock", Watched)
        with owned(tmp_path):
            pass
    with second, pytest.raises(OutputError, match="being written"), owned(tmp_path):
        pass


HOLD = """
import sys
from pathlib import Path
from smoothtune.errors import OutputError
from smoothtune.files import owned
folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
done = 0
while done < rounds:
    try:
        with owned(folder):
            (folder.parent / "inside").mkdir()  # fails if somebody else is inside
            (folder.parent / "inside").rmdir()
            done += 1
    except OutputError:
        pass
"""


@pytest.mark.slow
def test_no_two_owners(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out"), "500"]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()


def test_the_owner_is_named(tmp_path: Path) -> None:
    owner = f"process {os.getpid()} on "
    with owned(tmp_path):
        for _ in range(2):  # the first to be refused leaves the name to the second
            with pytest.raises(OutputError, match=owner), owned(tmp_path):
                pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".run.json.123.partial").write_text("{")
    (tmp_path / LOCK).write_text(json.dumps({"pid": 1, "host": "gone"}))
    with owned(tmp_path) as folder:
        files.refuse_other_files(folder, "run")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"x.json cannot be written: No such file"):
        write_atomic(tmp_path / "none" / "x.json", "")
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OutputError, match=r"x.json cannot be written: Is a directory"):
        write_atomic(tmp_path / "x.json", "")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.touch()
    told = "rows.csv is a file and no folder; choose another folder"
    for each in (file / "x", file / "x" / "y"):
        with pytest.raises(OutputError, match=f"cannot be read: .*{told}"):
            read_json(each / "result.json")
        with pytest.raises(OutputError, match=f"cannot be written: .*{told}"):
            make_folder(each)
        with pytest.raises(OutputError, match=f"cannot be written: .*{told}"):
            write_atomic(each / "run.yaml", "")
        with pytest.raises(OutputError, match=f"cannot be written: .*{told}"), owned(each):
            pass
    with pytest.raises(OutputError, match=told):
        make_folder(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"a": NaN}', "NaN is no finite number"),
        (b'{"a": -Infinity}', "no finite number"),
        (b'{"a": 1e999}', "1e999 is no finite number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "limit"),
        (b'{"a": "\xff"}', "utf-8"),
        (b"[1]", "holds no JSON object"),
        (b"", "Expecting value"),
    ],
)
def test_a_damaged_record_is_named(text: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(OutputError, match=reason) as caught:
        read_json(tmp_path / "x.json")
    assert str(caught.value).startswith(str(tmp_path / "x.json"))


def test_a_long_record_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 10)
    (tmp_path / "x.json").write_text('{"a": "0123456789"}')
    with pytest.raises(OutputError, match="longer than 10 bytes"):
        read_json(tmp_path / "x.json")
