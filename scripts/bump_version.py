"""Writes a new version into packages, sibling pins and the Rust workspace: `bump_version.py 0.2.0`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(version: str) -> None:
    """Rewrites the files, then renews both lock files."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        sys.exit(f"not a version: {version!r}")
    for path in ROOT.glob("packages/*/pyproject.toml"):
        text = path.read_text()
        text = re.sub(r'(?m)^version = "[^"]+"', f'version = "{version}"', text, count=1)
        text = re.sub(r'"(llm-(?:kvcache|stack-[a-z]+))==[^"]+"', rf'"\1=={version}"', text)
        path.write_text(text)
    cargo = ROOT / "rust/Cargo.toml"
    semver = re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)
    cargo.write_text(re.sub(r'(?m)^version = "[^"]+"', f'version = "{semver}"', cargo.read_text(), count=1))
    subprocess.run(["uv", "lock"], cwd=ROOT, check=True)
    subprocess.run(["cargo", "update", "--workspace"], cwd=ROOT / "rust", check=True)
    print(f"now {version}; write the CHANGELOG entries of packages/*")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
