"""Checks that all packages and the Rust workspace carry one version, and that siblings are pinned to it."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Prints each disagreement; returns the exit code."""
    projects = {
        path: tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")
    }
    names = {project["name"] for project in projects.values()}
    rust = tomllib.loads((ROOT / "rust/Cargo.toml").read_text())["workspace"]["package"]["version"]
    problems = []
    for path, project in projects.items():
        where = path.relative_to(ROOT)
        if project["version"] != rust:
            problems.append(f"{where}: version {project['version']}, but the Rust workspace has {rust}")
        for requirement in project["dependencies"]:
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match and match[0] in names and requirement != f"{match[0]}=={rust}":
                problems.append(f"{where}: {requirement!r} should be '{match[0]}=={rust}'")
        if rust not in (path.parent / "CHANGELOG.md").read_text():
            problems.append(f"{path.parent.relative_to(ROOT)}/CHANGELOG.md: no entry for {rust}")
    print("\n".join(problems) or f"one version everywhere: {rust}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
