#!/usr/bin/env bash
# Runs every check of the repository, or the ones named: `uv run scripts/ci.sh [fmt lint types layers rust docs packaging assets python]`.
set -euo pipefail
cd "$(dirname "$0")/.."

fmt() {
    ruff format --check .
    cargo fmt --manifest-path rust/Cargo.toml --all --check
}
lint() {
    ruff check .
    python scripts/check_versions.py
    cargo clippy --manifest-path rust/Cargo.toml --workspace --all-targets --locked -- -D warnings
}
types() { mypy; }
layers() { lint-imports; }
rust() { cargo test --manifest-path rust/Cargo.toml --locked; }
assets() { python scripts/fetch_test_assets.py; }
python_tests() {
    python scripts/share_tests.py "${TEST_PROCESSES:-2}" --by file --slowest 30 tests packages --ignore=tests/packaging
}
docs() { mkdocs build --quiet --strict; }
packaging() { pytest tests/packaging; }

for target in ${*:-fmt lint types layers rust docs packaging assets python}; do
    printf '\n== %s ==\n' "$target"
    if [ "$target" = python ]; then python_tests; else "$target"; fi
done
printf '\nall checks passed\n'
