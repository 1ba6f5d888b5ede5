"""`python -m smoothtune` is `smoothtune`: it imports no file of the current directory."""

import sys
from pathlib import Path

# `-m` put the current directory first, where a bisect.py would take the place of Python's own
if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parent.parent:
    del sys.path[0]

from smoothtune.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
