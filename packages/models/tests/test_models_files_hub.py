"""Finding models by hub names: a hub on this machine, the layout of the cache, offline, typed errors."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from llm_models import (
    GatedModel,
    HubUnreachable,
    ModelNotCached,
    ModelNotFound,
    PickleRefused,
    load_model,
    resolve,
)

SHA = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = "http://127.0.0.1:9"


class Hub:
    """As much of the hub's protocol as a snapshot needs, over a folder of files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.asked = files, []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, *, body):
                status, headers, content = hub.reply(self.path.split("?")[0])
                self.send_response(status)
                for key, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(key, value)
                self.end_headers()
                if body:
                    self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def reply(self, path):
        self.asked.append(path)
        if "/org/secret" in path:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}, b"{}"
        if "/org/model" not in path:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"}, b"{}"
        if "/tree/" in path:
            listing = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            return 200, {"Content-Type": "application/json"}, json.dumps(listing).encode()
        if path.startswith("/api/"):
            if not path.endswith(("/org/model", "/revision/main", f"/revision/{SHA}", "/revision/v1")):
                return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such"}, b"{}"
            siblings = [{"rfilename": name} for name in self.files]
            about = {"id": "org/model", "sha": SHA, "siblings": siblings}
            return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()
        name = path.split(f"/resolve/{SHA}/")[-1]
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = self.files[name]
        tag = f'"{hashlib.sha1(content).hexdigest()}"'
        return 200, {"ETag": tag, "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}, content

    def served(self):
        """The files that were fetched."""
        return {path.split(f"/resolve/{SHA}/")[1] for path in self.asked if "/resolve/" in path}


@pytest.fixture
def saved(make_reference, tmp_path):
    """A model's files, with much beside them that must not be fetched."""
    folder = tmp_path / "saved"
    make_reference("llama").save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": [2, 3]}))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "model.safetensors" in files
    others = (
        "pytorch_model.bin",
        "original/consolidated.00.pth",
        "original/params.json",
        "consolidated.safetensors",
        "onnx/model.onnx",
        "modeling_own.py",
        "tf_model.h5",
    )
    return files | dict.fromkeys(others, b"0" * 10) | {"1_Pooling/config.json": b"{}"}


@pytest.fixture
def hub(saved, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    hub = Hub(saved)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_a_model_is_fetched_and_loads(hub, cache):
    files = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    assert files.kind == "safetensors"
    assert files.path == cache / "models--org--model" / "snapshots" / SHA
    assert files.generation_config == {"temperature": 0.6, "eos_token_id": [2, 3]}
    load_model(files, dtype=torch.float32, device="cpu")


def test_only_what_is_needed_is_fetched(hub, cache):
    resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    wanted = {"config.json", "generation_config.json", "model.safetensors", "1_Pooling/config.json"}
    assert hub.served() == wanted


def test_what_is_cached_is_not_fetched_again(hub, cache):
    resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    hub.asked.clear()
    resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    assert hub.served() == set()


@pytest.mark.parametrize("name", ["org/model@v1", f"org/model@{SHA}"])
def test_a_revision_in_the_name(name, hub, cache):
    assert resolve(name, endpoint=hub.endpoint, cache_dir=cache).path.name == SHA


def test_a_revision_that_is_not_there(hub, cache):
    with pytest.raises(ModelNotFound, match="'v9'"):
        resolve("org/model@v9", endpoint=hub.endpoint, cache_dir=cache)


def test_a_model_that_is_not_there(hub, cache):
    with pytest.raises(ModelNotFound, match="no such folder here and no such model on the hub") as caught:
        resolve("org/nothing", endpoint=hub.endpoint, cache_dir=cache)
    assert type(caught.value) is ModelNotFound


def test_a_gated_model_says_what_to_do(hub, cache):
    with pytest.raises(GatedModel, match="accept its terms") as caught:
        resolve("org/secret", endpoint=hub.endpoint, cache_dir=cache)
    assert "HF_TOKEN" in str(caught.value)


def test_offline_uses_the_cache_and_asks_nobody(hub, cache):
    fetched = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    hub.asked.clear()
    assert resolve("org/model", offline=True, endpoint=hub.endpoint, cache_dir=cache) == fetched
    assert hub.asked == []


def test_offline_and_not_cached(hub, cache):
    with pytest.raises(ModelNotCached, match="offline"):
        resolve("org/model", offline=True, endpoint=hub.endpoint, cache_dir=cache)
    assert hub.asked == []


def test_offline_with_a_part_of_the_files(hub, cache):
    fetched = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    (fetched.path / "model.safetensors").unlink()
    with pytest.raises(ModelNotCached):
        resolve("org/model", offline=True, endpoint=hub.endpoint, cache_dir=cache)


def test_no_network_but_cached(hub, cache):
    fetched = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    assert resolve("org/model", endpoint=NOWHERE, cache_dir=cache) == fetched


def test_no_network_and_not_cached(cache):
    with pytest.raises(HubUnreachable, match="check the network") as caught:
        resolve("org/model", endpoint=NOWHERE, cache_dir=cache)
    assert "\n" not in str(caught.value)


def test_the_environment_names_the_cache(hub, cache, monkeypatch):
    resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    from huggingface_hub import constants

    # The library reads HF_HUB_CACHE and HF_HUB_OFFLINE once, when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve("org/model").path.name == SHA


@pytest.mark.parametrize("reference", [True, False])
def test_a_folder_of_the_cache_can_be_named(reference, hub, cache):
    fetched = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    folder = cache / "models--org--model"
    if not reference:
        (folder / "refs" / "main").unlink()
    assert resolve(str(folder)) == fetched


def test_a_folder_here_wins_over_the_hub(saved, tmp_path, monkeypatch):
    (tmp_path / "org").mkdir()
    (tmp_path / "saved").rename(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model", endpoint=NOWHERE).path.name == "model"


def test_pickles_are_fetched_by_flag_only(hub, cache):
    del hub.files["model.safetensors"]
    files = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache)
    assert "pytorch_model.bin" not in hub.served()
    allowed = resolve("org/model", endpoint=hub.endpoint, cache_dir=cache, allow_pickle=True)
    assert "pytorch_model.bin" in hub.served()
    assert (files.kind, allowed.kind) == ("safetensors", "pickle")
    with pytest.raises(PickleRefused):
        load_model(files, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("name", ["../x/y", "/no/where", "a/b/c", "org/", "@v1", "org/model@", "nothing"])
def test_what_is_no_hub_name_asks_nobody(name, hub, cache):
    with pytest.raises(ModelNotFound):
        resolve(name, endpoint=hub.endpoint, cache_dir=cache)
    assert hub.asked == []
