"""The calibration that is kept in a model's folder."""

from pathlib import Path

import pytest

from smoothtune.evaluation.calibration_file import CALIBRATION, Calibration, keep_calibration

FITTED = Calibration(
    temperature=1.5,
    conformal_scores=[0.1],
    fitted_on=10,
    judged_on=10,
    nll_before=0.7,
    nll_after=0.6,
    weights="weights",
    data="data",
)


def test_what_is_fitted_is_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A model\n")
    assert "keeps the temperature" in keep_calibration(FITTED, str(tmp_path))
    assert (tmp_path / CALIBRATION).exists()
    card = (tmp_path / "README.md").read_text()
    assert keep_calibration(FITTED, str(tmp_path))
    assert (tmp_path / "README.md").read_text() == card  # its section is replaced


def test_a_folder_that_cannot_be_written_does_not_end_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refused)
    said = keep_calibration(FITTED, str(tmp_path))
    assert said.startswith(f"the calibration is not kept: {tmp_path / CALIBRATION} cannot be")


def test_a_card_in_another_encoding_stays_as_it_is(tmp_path: Path) -> None:
    card = "Modèle".encode("latin-1")
    (tmp_path / "README.md").write_bytes(card)
    assert keep_calibration(FITTED, str(tmp_path)).startswith("the calibration is not kept")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_bytes() == card
