"""Write src/smoothtune/recommended.json, what the method name auto stands for, from a study.

python scripts/recommend.py OUT/results.json
"""

import json
import sys
from pathlib import Path

from smoothtune.files import write_json
from smoothtune.study.report.findings import recommend

TARGET = Path(__file__).parent.parent / "src" / "smoothtune" / "recommended.json"

if __name__ == "__main__":
    found = recommend(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    write_json(TARGET, found)
    print(json.dumps(found, indent=2))
