#!/bin/sh
# Build what a release uploads, check it, and use it in an environment that has nothing else: the
# wheel is installed into a new virtual environment, and the README's block and the demonstration
# run from there.
# Called by `make release-check`; takes some minutes, most of them to install PyTorch.
#
#   TORCH_BACKEND  cpu, auto or a CUDA version, as uv knows them; empty: as uv is configured   (cpu)
#   DEMO           no: without the demonstration   (yes)
#   CLEAN          no: without the new environment   (yes)
set -eu

python=${PYTHON:-.venv/bin/python}
folder=build/release
rm -rf "$folder"
"$python" -m build --no-isolation --outdir "$folder" . > /dev/null
"$python" -m twine check --strict "$folder"/*

"$python" - "$folder" <<'END'
import sys
import tarfile
import zipfile
from pathlib import Path

folder = Path(sys.argv[1])
(wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
inside = set(zipfile.ZipFile(wheel).namelist())
needed = ["py.typed", "catalog.json", "recipes/smoke.yaml", "templates/model_card.md.jinja"]
missing = [name for name in needed if f"smoothtune/{name}" not in inside]
names = [name.partition("/")[2] for name in tarfile.open(sdist).getnames()]
extra = [name for name in names if name.startswith(("results", "benchmarks/results", "."))
         and name not in (".gitignore",)]
if missing or extra:
    sys.exit(f"the wheel lacks {missing}, the sdist should not hold {extra[:5]}")
for path in (wheel, sdist):
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
END

if [ "${CLEAN:-yes}" = no ]; then exit; fi
uv=$(command -v uv) || { "$python" -m pip install --quiet uv && uv=$(dirname "$python")/uv; }
uv=$(cd "$(dirname "$uv")" && pwd)/uv
wheel=$(cd "$folder" && pwd)/$(basename "$folder"/*.whl)
pins=$(pwd)/constraints.txt
readme=$(pwd)/README.md
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT
cd "$clean"
"$uv" venv --quiet --python "${BASE_PYTHON:-python3}" venv
backend=${TORCH_BACKEND-cpu}
"$uv" pip install --quiet --python venv/bin/python ${backend:+--torch-backend "$backend"} \
    --constraint "$pins" "smoothtune[minilm] @ file://$wheel"
venv/bin/python -c "import smoothtune, pathlib; assert 'venv' in smoothtune.__file__"
"$uv" pip check --quiet --python venv/bin/python
venv/bin/smoothtune methods lnsr > /dev/null
venv/bin/smoothtune study --list > /dev/null
awk '/^```python/ { on = 1; next } /^```/ { on = 0 } on' "$readme" > readme.py
HF_HUB_OFFLINE=1 venv/bin/python readme.py > /dev/null
if [ "${DEMO:-yes}" != no ]; then HF_HUB_OFFLINE=1 venv/bin/smoothtune demo; fi
echo "release-check: the wheel works where nothing else is installed"
