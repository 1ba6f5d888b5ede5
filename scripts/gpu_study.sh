#!/bin/sh
# Run a study on one card for a given time, with many runs at once, and pack what is done.
#
#     scripts/gpu_study.sh STUDY DATA OUT SECONDS [JOBS]
#
# A small model keeps a large card busy for moments only; NVIDIA's MPS lets processes share it.
# Without nvidia-cuda-mps-control the runs take turns. When the time is up the study is stopped as
# by Ctrl-C, and the same command goes on with it. OUT.tar.gz has its records, without models and
# checkpoints. Ends with the study's status, or with 0 if the time was up.
set -eu
study=$1 data=$2 out=$3 seconds=$4 jobs=${5:-15}

if command -v nvidia-cuda-mps-control >/dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY="${TMPDIR:-/tmp}/mps" CUDA_MPS_LOG_DIRECTORY="${TMPDIR:-/tmp}/mps-log"
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d || echo "MPS runs already, or cannot: runs may take turns" >&2
fi
status=0
timeout --signal TERM --kill-after 60 "$seconds" \
    "${PYTHON:-python}" -m smoothtune study "$study" --data "$data" --output-dir "$out" --jobs "$jobs" ||
    status=$?
[ "$status" != 124 ] || status=0
if command -v nvidia-cuda-mps-control >/dev/null; then
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true
fi
[ -d "$out/cells" ] || exit "$status" # nothing is done
tar -czf "$out.tar.gz" --exclude=models --exclude=work --exclude=checkpoints -C "$(dirname "$out")" "$(basename "$out")"
echo "$(find "$out/cells" -name '*.json' | wc -l) runs are done; records: $out.tar.gz"
exit "$status"
