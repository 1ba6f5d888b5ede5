"""What errors print, and the exit codes they give."""

import pytest
import typer

from smoothtune.cli.output import errors_as_exit_codes


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")],
)
def test_no_memory_is_told_in_a_sentence(error: Exception, capsys) -> None:
    with pytest.raises(typer.Exit) as ended, errors_as_exit_codes():
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.startswith("error: out of memory (")


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="something else"), errors_as_exit_codes():
        raise RuntimeError("something else")
