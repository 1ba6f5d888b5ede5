"""Files that cannot grow, and folders that cannot be written."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_room(size: int = 0) -> Iterator[None]:
    """No file of this process can be longer than `size` bytes, whoever writes it."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@contextmanager
def read_only_folder(beside: Path) -> Iterator[Path]:
    """A folder that this process may read and not write; root becomes nobody meanwhile.

    A copy of the folder `beside` stands beside it.
    """
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        shutil.copytree(beside, Path(name) / beside.name)
        (folder := Path(name) / "out").mkdir()
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
