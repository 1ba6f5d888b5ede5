#!/bin/sh
# Make or update .venv: torch first, in its CPU build, then smoothtune with its extras.
# uv does the work when it is there, else venv and pip. Called by the Makefile.
#
#   PYTHON         interpreter to build on                        (python3)
#   TORCH          requirement for torch                          (as in constraints.txt)
#   TORCH_INDEX    package index to take torch from               (none)
#   TORCH_BACKEND  cpu, auto or a CUDA version such as cu130      (cpu)
set -eu

python=${PYTHON:-python3}
torch=${TORCH:-$(grep '^torch==' constraints.txt)}
torch_index=${TORCH_INDEX:-}
torch_backend=${TORCH_BACKEND:-cpu}

say() { echo "install: $*" >&2; }

# pip_option NAME: the value in pip's configuration, files or environment; empty when not set.
pip_option() {
    "$python" -m pip config list 2>/dev/null |
        sed -nE "s/^(global|install|:env:)\.$1='(.*)'\$/\2/p" | head -n 1 | sed 's/\\n/ /g'
}

# uv does not read pip's configuration. With extra indexes pip takes the best version of all of
# them; uv would stop at the first index that knows the package.
give_pip_configuration_to_uv() {
    index=$(pip_option index-url)
    extra=$(pip_option extra-index-url)
    if [ -n "$find_links" ]; then
        export UV_FIND_LINKS="${UV_FIND_LINKS:-$(echo "$find_links" | tr -s ' ' ',')}"
    fi
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"; fi
    if [ -n "$extra" ]; then
        export UV_INDEX="${UV_INDEX:-$extra}" UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}"
    fi
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "smoothtune needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11"
    exit 1
}

find_links=$(pip_option find-links)
give_pip_configuration_to_uv
if uv=$(command -v uv); then
    [ -x .venv/bin/python ] || "$uv" venv --python "$python" .venv
    install() { "$uv" pip install --python .venv/bin/python "$@"; }
else
    "$python" -m venv .venv
    install() { .venv/bin/python -m pip install "$@"; }
fi

# The default Linux build of torch brings several gigabytes of CUDA packages, and pip cannot
# choose another build by itself. uv can, so it is fetched for this one step where needed.
if [ -n "$torch_index" ]; then
    say "$torch from $torch_index"
    install --index-url "$torch_index" "$torch"
elif [ -n "$find_links" ] && [ "$torch_backend" = cpu ]; then
    say "$torch as pip is configured to find it (find-links: $find_links)"
    install "$torch"
else
    say "$torch, build: $torch_backend"
    if [ -z "$uv" ]; then
        install uv
        uv=.venv/bin/uv
    fi
    "$uv" pip install --python .venv/bin/python --torch-backend "$torch_backend" "$torch"
fi

install --constraint constraints.txt --editable '.[dev,minilm]'
