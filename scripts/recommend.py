"""Write src/smoothtune/recommended.json, what the method name auto stands for, from a study.

python scripts/recommend.py OUT/results.json
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.files import write_json
from smoothtune.study.config import LONGER, PLAIN
from smoothtune.study.report.findings import LEVEL

TARGET = Path(__file__).parent.parent / "src" / "smoothtune" / "recommended.json"


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
    qualified = []
    for label, item in overall.items():
        own = [method for method in results["methods"] if method["method"] == label]
        gaps = [method["against_plain"]["difference"]["value"] for method in own]
        significant = item["p_holm"] is not None and item["p_holm"] < LEVEL
        whole = all(method["measures"]["score"]["n"] == method["asked"] for method in own)
        same = len({str(method["configured"]) for method in own}) == 1
        better = min(gaps) > 0 and item["difference"]["value"] > max(0.0, longer)
        if better and significant and whole and same and not own[0]["changes"]:
            cost = float(np.mean([method["against_plain"]["cost_ratio"] for method in own]))
            qualified.append((cost, label, own[0]["configured"], item))
    qualified = [each for each in qualified if each[1] not in (PLAIN, LONGER)]
    if not qualified:
        return {"methods": None, "evidence": None}
    cost, label, methods, item = min(qualified, key=lambda each: each[:2])
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


if __name__ == "__main__":
    recommendation = recommend(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    write_json(TARGET, recommendation)
    print(json.dumps(recommendation, indent=2))
