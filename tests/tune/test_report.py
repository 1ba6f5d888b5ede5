"""The run file that a search leaves."""

from pathlib import Path

from smoothtune.config.run import load_config
from smoothtune.config.tuning import load_tune
from smoothtune.tune.confirm import Comparison
from smoothtune.tune.findings import Outcome
from smoothtune.tune.report import run_file
from smoothtune.tune.search import Trial
from smoothtune.tune.space import Setting


def test_the_run_file_says_what_was_given_where_defaults_depend_on_the_task(tmp_path: Path) -> None:
    given = {"max_seq_length": 128, "train_sampling_strategy": "group_by_length"}
    tune = load_tune(options={"task": "squad", "output_dir": str(tmp_path)} | given)
    plain = Trial("plain", 0, Setting("plain", {}, 1e-4, 2.0))
    outcome = Outcome([plain], plain, None, [], Comparison([], [], None), {}, {}, 60)
    (tmp_path / "best.yaml").write_text(run_file(tune, outcome))
    best = load_config(tmp_path / "best.yaml")
    assert {name: getattr(best, name) for name in given} == given
