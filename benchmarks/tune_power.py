"""How often `smoothtune tune` finds a true gain, and how often it finds one that is not there.

    python benchmarks/tune_power.py

Searches with the default settings, in which a model of scores stands in the place of training: what
is trained with which seed and scored on which rows, and what is made of the scores, is the code of
the package. The truth is known, and is the accuracy on all rows that there could be. It writes
benchmarks/results/tune-power.json and .md.
"""

import argparse
import json
import math
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from scipy import special

from smoothtune.config.tuning import load_tune
from smoothtune.tune.confirm import compare, fresh_runs, search_run
from smoothtune.tune.search import Outcome, search_all
from smoothtune.tune.space import PLAIN

RESULTS = Path(__file__).parent / "results"
ROWS, GAINS, SEARCHES = (300, 500), (0.0, 0.05, 0.1), 200
PEAK = 0.8
"""Accuracy of plain fine-tuning at its best learning rate and epochs."""
OCTAVE, CHANCE = 0.01, 0.5
"""What twice or half the best product of both costs; four times as much costs four times that."""
CENTER, AMONG_TASKS, AMONG_METHODS = math.log2(4e-4), 1.0, 0.5
"""Where that product is best, log2: its mean, and how it varies with the task and the method."""
ROW, OF_METHOD, OF_SETTING, OF_RUN, LUCK = 1.0, 0.2, 0.2, 0.45, 0.08
"""Deviations, in probits: how hard a row is; how well a method, and a setting, suits it; what
chance moves a row by in a run, and all rows of a run together: 2 points. Half of the variance of
the latter is that of the seed and the training rows, which a pair shares."""
TOTAL = math.sqrt(ROW**2 + OF_METHOD**2 + OF_SETTING**2 + OF_RUN**2 + LUCK**2)


class World:
    """A task whose scores are drawn.

    Args:
        seed: of all draws.
        gain: by how much one of the methods is better, at any strength; the others are as plain.
        rows: training rows, all parts together.
    """

    def __init__(self, seed, gain, rows):
        self.tune = load_tune(options={"task": "sst2", "output_dir": "unset", "seed": seed})
        self.draw = np.random.default_rng([seed, rows])
        self.gain, self.rows = gain, rows
        self.better = self.draw.choice(list(self.tune.methods))
        self.row = self.normal(ROW, rows)
        task = CENTER + self.normal(AMONG_TASKS)
        self.centers = {m: task + self.normal(AMONG_METHODS) for m in self.tune.methods}
        self.centers[PLAIN] = task
        self.known = {}

    def normal(self, deviation, size=None):
        """Draws around 0."""
        return self.draw.normal(0, deviation, size)

    def once(self, key, make):
        """What is drawn once and for all."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def truth(self, setting):
        """Accuracy on all rows that there could be."""
        off = math.log2(setting.learning_rate * setting.epochs) - self.centers[setting.method]
        found = PEAK - OCTAVE * off**2 + self.gain * (setting.method == self.better)
        return max(CHANCE, found)

    def right(self, setting, run):
        """(R,) whether a training has each of its held-out rows right."""
        parts = self.tune.settings.num_parts
        cut = self.once(run.cut, lambda: self.draw.permutation(self.rows))
        scored = cut[run.part :: parts]
        suits = self.once(setting.method, lambda: self.normal(OF_METHOD, self.rows))
        own = self.once(setting.describe(), lambda: self.normal(OF_SETTING, self.rows))
        shared = self.once(run, lambda: self.normal(LUCK))
        luck = (shared + self.normal(LUCK)) / math.sqrt(2)
        level = TOTAL * special.ndtri(self.truth(setting)) + luck
        chance = self.normal(OF_RUN, len(scored))
        return level + self.row[scored] + suits[scored] + own[scored] + chance > 0

    def score(self, setting, run):
        """Accuracy of a training on its held-out rows."""
        return float(self.right(setting, run).mean())

    def search(self):
        """The best settings of plain and of the methods, and their comparison on fresh runs."""
        settings, seed = self.tune.settings, self.tune.run.seed

        def run(work):
            return [Outcome(self.score(t.setting, search_run(fold, seed))) for t, fold in work]

        best = [arm.best().setting for arm in search_all(self.tune, run=run)]
        fresh = fresh_runs(settings.confirm_runs, settings.num_parts, seed)
        scores = [[self.score(setting, each) for each in fresh] for setting in best]
        return best, compare(*scores, settings.num_parts)


def condition(gain, rows, searches):
    """What comes of searches, numbered from 0, with one truth."""
    used, picked, gains, deviations, disagree = 0, 0, [], [], []
    for seed in range(searches):
        world = World(seed, gain, rows)
        (plain, method), by = world.search()
        used += by.better
        picked += method.method == world.better
        gains.append(100 * (world.truth(method) - world.truth(plain)))
        deviations.append(100 * stdev(m - p for p, m in zip(by.plain, by.method, strict=True)))
        run = search_run(0, seed)
        disagree.append(np.mean(world.right(plain, run) != world.right(method, run)))
    return {
        "rows": rows,
        "gain": 100 * gain,
        "searches": searches,
        "used": used,
        "right_method": picked,
        "true_gain_of_the_pick": fmean(gains),
        "deviation_of_a_difference": fmean(deviations),
        "rows_that_differ": fmean(disagree),
    }


def markdown(found):
    """The table."""
    differ = 100 * fmean(row["rows_that_differ"] for row in found)
    lines = [
        "# Gains that `smoothtune tune` finds, and does not",
        "",
        "`python benchmarks/tune_power.py`",
        "",
        "Simulated searches with the default settings and methods. One method is truly better than",
        "plain by so many points of accuracy, the others are equal to it; all depend alike on",
        "learning rate and epochs, with the best place drawn anew for every search. A score is of",
        "a fifth of the rows. A run's luck has a deviation of 2 points, beside that of its rows;",
        f"two runs differ on {differ:.0f} % of them.",
        '"Says use": searches that end with a method in the place of plain; without a true gain',
        "that is false. Pick: the best setting of a method, less the best of plain, in truth.",
        "",
        "| rows | true gain | searches | says use | right method | true gain of the pick | "
        "deviation of a difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        share = 100 * row["used"] / row["searches"]
        error = 100 * math.sqrt(share / 100 * (1 - share / 100) / row["searches"])
        right = f"{100 * row['right_method'] / row['searches']:.0f} %" if row["gain"] else ""
        lines.append(
            f"| {row['rows']} | {row['gain']:.0f} | {row['searches']} | {share:.1f} % "
            f"(± {error:.1f}) | {right} | {row['true_gain_of_the_pick']:+.1f} | "
            f"{row['deviation_of_a_difference']:.1f} |"
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main():
    """Simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=SEARCHES)
    searches = parser.parse_args().searches
    found = [condition(gain, rows, searches) for rows in ROWS for gain in GAINS]
    (RESULTS / "tune-power.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    (RESULTS / "tune-power.md").write_text(markdown(found), "utf-8")


if __name__ == "__main__":
    main()
