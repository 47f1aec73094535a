"""Files of the Hugging Face hub, through its own client: its cache, tokens, progress and resumption."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radioplat.common.hashing import file_hash
from radioplat.errors import WeightsError
from radioplat.spec.weights.address import Address
from radioplat.spec.weights.local import folder_of
from radioplat.spec.weights.lock import Entry, Pin

_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt")  # of two formats with all weights only the first is fetched
_BESIDE = (".json", ".txt", ".model")  # configuration, preprocessing, tokenizer


def fetch_repository(address: Address, pinned: Entry | None, again: bool = False) -> Entry:
    """Download the files of a repository that are not in the cache yet.

    Args:
        pinned: its files that are missing or differ are fetched from its commit; None for the newest commit, or the
            address's revision.
        again: download files that are in the cache, too.

    Raises:
        WeightsError: see :func:`radioplat.tasks.weights.fetch.fetch`.
    """
    where, repository = address.text, pinned.repository if pinned else address.repository
    try:
        if pinned:
            revision, names, value, folder = pinned.revision, list(pinned.files), pinned.value, folder_of(pinned)
            wanted = [name for name in names if not _is(folder / name, pinned.files[name])]
            for name in wanted:  # of a link also the file that it points to, which the client would link again
                (folder / name).resolve().unlink(missing_ok=True)
                (folder / name).unlink(missing_ok=True)
        else:
            revision, names, value = _newest(address)
            wanted, folder = names, folder_of(Entry(repository, revision))
        if wanted:
            _download(repository, revision, wanted, again)
    except Exception as error:  # the client raises many kinds, of three libraries
        there = folder_of(Entry(repository, pinned.revision if pinned else "COMMIT")).parents[1]
        hint = f"Run the same command where there is a network, and copy {there} and the lock file from there."
        if (problem := problem_of(error, address, hint)) is None:
            raise
        raise problem from None
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise WeightsError(f"{', '.join(absent)} is not in the repository at commit {revision[:12]}", where=where)
    pins = {name: Pin(file_hash(folder / name), (folder / name).stat().st_size) for name in sorted(names)}
    return Entry(repository, revision, value, pins)


def _newest(address: Address) -> tuple[str, list[str], str]:
    """Return commit, files and the file that a spec means, of the address's revision."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(address.repository, revision=address.revision or None)
    names = _files([each.rfilename for each in info.siblings or ()], address)
    return str(info.sha), names, address.file or _value(info, names)


def _download(repository: str, revision: str, names: Sequence[str], again: bool = False) -> None:
    from huggingface_hub import snapshot_download

    exact = [glob.escape(name) for name in names]
    snapshot_download(repository, revision=revision, allow_patterns=exact, force_download=again)


def _is(file: Path, pin: Pin) -> bool:
    return file.is_file() and file.stat().st_size == pin.bytes and file_hash(file) == pin.sha256


def _files(names: Sequence[str], address: Address) -> list[str]:
    """Return the files to fetch of those that a repository has.

    Raises:
        WeightsError: it has no weights, or not the file of the address.
    """
    if address.file:
        if address.file not in names:
            there = ", ".join(name for name in names if name.endswith(_WEIGHTS)) or "no weights"
            raise WeightsError(f"the repository has no {address.file}; it has {there}", where=address.text)
        return [address.file]
    weights = next((named for end in _WEIGHTS if (named := [n for n in names if n.endswith(end)])), [])
    if not weights:
        hint = "Name a file of it: hf://ORG/NAME/FILE."
        raise WeightsError(f"the repository has no weights ({', '.join(_WEIGHTS)})", where=address.text, hint=hint)
    return [*weights, *(name for name in names if name.endswith(_BESIDE))]


def _value(info: Any, names: Sequence[str]) -> str:
    """Return the file that a spec means: the weights, if the repository is one of timm's models; else the folder."""
    single = "model.safetensors"
    return single if getattr(info, "library_name", None) == "timm" and single in names else ""


def problem_of(error: Exception, address: Address, hint: str) -> WeightsError | None:
    """Return the message for an error of the hub's client; None for one that is no problem of hub or network.

    Args:
        hint: advice where the hub cannot be reached.
    """
    from huggingface_hub import constants, errors

    where, repository, hub = address.text, address.repository, constants.ENDPOINT
    if isinstance(error, WeightsError):
        return error
    if isinstance(error, errors.HFValidationError):
        return WeightsError(f"{repository} cannot be the name of a repository", where=where)
    if isinstance(error, errors.GatedRepoError):
        accept = f"Accept its licence on {hub}/{repository}, and set HF_TOKEN to a token of that account."
        return WeightsError("the repository is gated", where=where, hint=accept)
    if isinstance(error, errors.RevisionNotFoundError):
        revision = address.revision or "that the lock file pins"
        return WeightsError(f"the repository {repository} has no revision {revision}", where=where)
    if isinstance(error, errors.RepositoryNotFoundError):
        check = "Check the name; for a private one set HF_TOKEN."
        return WeightsError(f"there is no repository {repository}, or it is private", where=where, hint=check)
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status in (401, 403) or isinstance(error, errors.LocalTokenNotFoundError):
        token = "Set HF_TOKEN to a token that may do this, or run `hf auth login`."
        return WeightsError(f"the hub {hub} refuses", where=where, hint=token)
    reason = " ".join(str(error).split())[:200]
    if status is not None:
        return WeightsError(f"the hub {hub} answers with {status}: {reason}", where=where, hint="Try it again later.")
    if constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    elif not (_of_network(error) or isinstance(error, (ConnectionError, TimeoutError, errors.LocalEntryNotFoundError))):
        return None  # a full disk, a folder without rights: the operating system's message says more
    return WeightsError(f"the hub {hub} cannot be reached: {reason}", where=where, hint=hint)


def _of_network(error: Exception) -> bool:
    kinds = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(kinds & {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "hf_xet"})
