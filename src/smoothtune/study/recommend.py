"""The cheapest method that beat plain fine-tuning in a study, by fixed rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from smoothtune.study.config import LONGER, PLAIN
from smoothtune.study.words import LEVEL


def recommend(results: Mapping[str, Any]) -> dict[str, Any]:
    """What ``recommended.json`` should hold after a study.

    A method qualifies if its mean score is above plain's under every condition, its mean
    difference over all of them is above 0 at 5 % after Holm's correction, above that of plain
    fine-tuning for more epochs, all its runs gave a result, and it had one setting throughout
    that changes nothing but methods. The cheapest one in training time is taken.

    Args:
        results: the content of a study's ``results.json``.

    Returns:
        ``methods`` and ``evidence``, both None if no method qualifies.
    """
    overall = {item["method"]: item for item in results["over_tasks"]}
    longer = overall.get(LONGER, {"difference": {"value": 0.0}})["difference"]["value"]
    found = []
    for label, item in overall.items():
        own = [method for method in results["methods"] if method["method"] == label]
        gaps = [method["against_plain"]["difference"]["value"] for method in own]
        significant = item["p_holm"] is not None and item["p_holm"] < LEVEL
        whole = all(method["measures"]["score"]["n"] == method["asked"] for method in own)
        same = len({str(method["configured"]) for method in own}) == 1
        better = min(gaps) > 0 and item["difference"]["value"] > max(0.0, longer)
        if better and significant and whole and same and not own[0]["changes"]:
            cost = float(np.mean([method["against_plain"]["cost_ratio"] for method in own]))
            found.append((cost, label, own[0]["configured"], item))
    found = [each for each in found if each[1] not in (PLAIN, LONGER)]
    if not found:
        return {"methods": None, "evidence": None}
    cost, label, methods, item = min(found, key=lambda each: each[:2])
    evidence = {
        "study": results["name"],
        "label": label,
        "seeds": results["seeds"],
        "conditions": item["conditions"],
        "difference": item["difference"],
        "p_holm": item["p_holm"],
        "test": item["test"],
        "cost_ratio": cost,
    }
    return {"methods": methods, "evidence": evidence}
