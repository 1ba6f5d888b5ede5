"""How often a run logs."""

from types import SimpleNamespace

import pytest

from smoothtune.run.callbacks import ShortRunLogs


@pytest.mark.parametrize(
    ("updates", "logged"),
    [(60, list(range(6, 61, 6))), (7, list(range(1, 8))), (600, list(range(50, 601, 50)))],
)
def test_a_short_run_logs_about_ten_times_and_a_long_one_as_it_says(updates, logged):
    found = []
    for step in range(1, updates + 1):
        control = SimpleNamespace(should_log=step % 50 == 0)  # as the Trainer asks for it
        state = SimpleNamespace(max_steps=updates, global_step=step)
        ShortRunLogs().on_step_end(SimpleNamespace(logging_steps=50), state, control)
        found += [step] * control.should_log
    assert found == logged
