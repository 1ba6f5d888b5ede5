"""Evaluate a fine-tuned model: metrics, calibration, robustness, smoothness, drift."""

from smoothtune.config.evaluation import Settings
from smoothtune.evaluation.calibration import fit_temperature, split_for_temperature
from smoothtune.evaluation.conformal import conformal_scores, conformal_threshold, prediction_sets
from smoothtune.evaluation.corruption import (
    corrupt_tokens,
    drop_words,
    swap_words,
    text_corruption_curve,
    token_corruption_curve,
    typos,
)
from smoothtune.evaluation.drift import linear_cka, representation_drift, weight_drift
from smoothtune.evaluation.intervals import Interval, bootstrap_intervals
from smoothtune.evaluation.predictor import Predictor, load_predictor
from smoothtune.evaluation.reliability import Reliability, reliability
from smoothtune.evaluation.robustness import attack_curve, noise_curve
from smoothtune.evaluation.run import evaluate
from smoothtune.evaluation.smoothness import derivative_norms, noise_propagation, noise_spectrum
from smoothtune.evaluation.theory import lipschitz, noise_expansion
from smoothtune.report.curves import Curve, CurvePoint, area
from smoothtune.report.plots import draw
from smoothtune.tasks.metrics import brier, nll
from smoothtune.tasks.question_answering.squad import (
    exact_match,
    normalize_answer,
    squad_metrics,
    token_f1,
)
