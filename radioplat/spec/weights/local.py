"""Where fetched weights are on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from radioplat.common.hashing import file_hash
from radioplat.errors import Problem, SpecError
from radioplat.spec.weights.address import parse_address
from radioplat.spec.weights.lock import Entry, lock_path, read_lock


def folder_of(entry: Entry) -> Path:
    """Return the folder of an entry's files: the hub's own cache, or radioplat's for files of web servers."""
    if entry.repository:
        return _hub_cache() / f"models--{entry.repository.replace('/', '--')}" / "snapshots" / entry.revision
    return _cache() / "radioplat" / "weights" / next(iter(entry.files.values())).sha256[:16]


def local_path(text: str, where: str) -> str:
    """Return the path of the weights at the address ``text``.

    Args:
        where: field of the spec, for messages.

    Raises:
        SpecError: it is no address, its weights were not fetched, or a file is missing or has another size.
    """
    address, lock = parse_address(text, where), lock_path()
    entry = read_lock(lock).get(address.text)
    command = f"radioplat weights fetch {text}"
    if entry is None:
        hint = f"Run `{command}`: it downloads them and writes their hashes to {lock}."
        raise SpecError(f"{text} was not fetched (not in {lock})", where=where, hint=hint)
    folder = folder_of(entry)
    for name, pin in entry.files.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != pin.bytes:
            fault = "is missing" if size is None else f"has {size:,} bytes, not {pin.bytes:,}"
            whole = folder.parents[1] if entry.repository else folder  # a commit's folder in the hub's cache has links
            hint = f"Run `{command}`; without network, copy the folder {whole} from a machine that has it."
            raise SpecError(f"{text}: {file} {fault}", where=where, hint=hint)
    return str(folder / entry.value) if entry.value else str(folder)


def hash_problems(path: str, where: str) -> Iterator[Problem]:
    """Yield a problem for each file below the fetched ``path`` whose content is not the one of the lock file."""
    for text, entry in _entries_at(path):
        folder = folder_of(entry)
        for name, pin in entry.files.items():
            if (folder / name).is_file() and file_hash(folder / name) != pin.sha256:
                hint = f"Run `radioplat weights fetch {text}`: it fetches what differs again."
                yield Problem(f"{folder / name} is not the file that {lock_path()} pins", where, hint)


def address_of(path: str) -> str:
    """Return the address of the fetched weights at ``path``; empty if the lock file has none there."""
    return next((text for text, _ in _entries_at(path)), "")


def _entries_at(path: str) -> Iterator[tuple[str, Entry]]:
    """Yield the addresses and entries of the lock file whose weights are at ``path``."""
    for text, entry in read_lock(lock_path()).items():
        if path in (str(folder_of(entry)), str(folder_of(entry) / entry.value)):
            yield text, entry


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _hub_cache() -> Path:
    """Return the cache of huggingface_hub, by the variables that it reads."""
    home = os.environ.get("HF_HOME") or _cache() / "huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub"
    return Path(os.path.expandvars(cache)).expanduser()
