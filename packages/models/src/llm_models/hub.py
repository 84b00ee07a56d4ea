"""Owns fetching a model folder from the Hugging Face hub or its cache; knows nothing about what is in it."""

import re
from dataclasses import dataclass
from pathlib import Path

from llm_models.errors import GatedModel, HubUnreachable, ModelNotCached, ModelNotFound

_NAME = r"[A-Za-z0-9][\w.-]{0,95}"
_HUB_ID = re.compile(rf"(?P<repository>{_NAME}/{_NAME})(?:@(?P<revision>[\w./-]+))?")
_FILES = ("*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja")
_PICKLES = ("pytorch_model*.bin",)
# Copies of the weights for other programs.
_IGNORED = ("original/*", "metal/*", "onnx/*", "openvino/*", "coreml/*", "consolidated*.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """How the hub is asked.

    Attributes:
        revision: A branch, tag or commit, where the model's name has none; None for `main`.
        offline: Use only what is in the cache. `HF_HUB_OFFLINE=1` in the environment does the same.
        allow_pickle: Fetch `pytorch_model*.bin` too.
        cache_dir: The cache; None for `HF_HUB_CACHE`, else `HF_HOME/hub`.
        endpoint: The hub's address; None for `HF_ENDPOINT`, else huggingface.co.
    """

    revision: str | None = None
    offline: bool = False
    allow_pickle: bool = False
    cache_dir: Path | None = None
    endpoint: str | None = None


def is_hub_id(model: str) -> bool:
    """Whether the name has the form `organisation/name` or `organisation/name@revision`."""
    return _HUB_ID.fullmatch(model) is not None and not model.lower().endswith(".gguf")


def fetch(model: str, options: HubOptions) -> Path:
    """The folder with the model's files, fetched where the cache lacks them.

    Args:
        model: For which `is_hub_id` holds.
        options: How to ask.

    Raises:
        ModelNotFound: The hub has no such model or revision.
        GatedModel: The hub does not give it to this user.
        ModelNotCached: It is not in the cache, or only in part, and nothing may be fetched.
        HubUnreachable: The hub does not answer, and the cache does not have it.
    """
    # Imported here: it takes a while, and most calls name a folder.
    from huggingface_hub import constants, snapshot_download

    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise ModelNotFound(model, "it does not have the form organisation/name[@revision]")
    offline = options.offline or constants.HF_HUB_OFFLINE
    try:
        folder = snapshot_download(
            match["repository"],
            revision=match["revision"] or options.revision,
            cache_dir=options.cache_dir,
            endpoint=options.endpoint,
            local_files_only=offline,
            allow_patterns=[*_FILES, *(_PICKLES if options.allow_pickle else ())],
            ignore_patterns=list(_IGNORED),
        )
    except Exception as error:
        known = _explained(model, error, offline=offline)
        if known is None:
            raise
        raise known from error
    return Path(folder)


def cached_snapshot(folder: Path) -> Path | None:
    """The current snapshot of a cache's folder of one model (`models--organisation--name`), else None."""
    snapshots, reference = folder / "snapshots", folder / "refs" / "main"
    if not snapshots.is_dir():
        return None
    if reference.is_file():
        named = snapshots / reference.read_text().strip()
        if named.is_dir():
            return named
    found = [path for path in snapshots.iterdir() if path.is_dir()]
    return found[0] if len(found) == 1 else None


def _explained(model: str, error: Exception, *, offline: bool) -> ModelNotFound | None:
    """The error to raise for one of the hub library; None for what is no trouble with the hub."""
    from huggingface_hub import errors

    name, _, revision = model.partition("@")
    if isinstance(error, errors.GatedRepoError):
        reason = f"access to it is restricted: accept its terms on the page of {name} at the hub, and log in"
        return GatedModel(model, f"{reason} (`hf auth login`, or the environment variable HF_TOKEN)")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(model, f"the hub has {name}, but not its revision {revision or 'asked for'!r}")
    if isinstance(error, errors.RepositoryNotFoundError):
        reason = "there is no such folder here and no such model on the hub"
        return ModelNotFound(model, f"{reason}; if it is private, log in (`hf auth login`, or HF_TOKEN)")
    if isinstance(error, errors.LocalEntryNotFoundError) and offline:
        reason = "there is no such folder here, it is not in the hub's cache (or only a part is)"
        return ModelNotCached(model, f"{reason}, and nothing is fetched offline: fetch it once without that")
    transport = getattr(errors, "HTTPError", ConnectionError)
    if isinstance(
        error, errors.HfHubHTTPError | errors.LocalEntryNotFoundError | ConnectionError | transport
    ):
        reason = "there is no such folder here, and the hub cannot be reached"
        return HubUnreachable(model, f"{reason} ({_first_line(error)}): check the network, or name a folder")
    if isinstance(error, errors.HFValidationError):
        return ModelNotFound(model, f"it is not a name that the hub knows ({_first_line(error)})")
    return None


def _first_line(error: BaseException) -> str:
    """The cause at the bottom, in a few words: the library wraps connection errors in long advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
