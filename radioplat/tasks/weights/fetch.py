"""``radioplat weights fetch``: download weights once, and pin their hashes in the lock file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from radioplat.errors import SpecError, WeightsError
from radioplat.spec.weights.address import Address, Kind, is_address, parse_address
from radioplat.spec.weights.local import folder_of
from radioplat.spec.weights.lock import Entry, lock_path, read_lock, write_lock
from radioplat.tasks.weights.hub import fetch_repository
from radioplat.tasks.weights.web import fetch_file

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fetched:
    """Weights on this machine: their address, the path for a spec, what is pinned, and whether that is new."""

    address: str
    path: Path
    entry: Entry
    is_new: bool

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(pin.bytes for pin in self.entry.files.values())


def fetch(
    addresses: Sequence[str],
    *,
    lock: str | Path | None = None,
    sha256: str = "",
    update: bool = False,
    progress: Progress | None = None,
) -> Iterator[Fetched]:
    """Download the weights at each address that are not on this machine, and pin their files in the lock file.

    What the lock file pins is fetched as pinned: the same commit, and files with the same hashes.

    Args:
        addresses: see :mod:`radioplat.spec.weights.address`; none for all of the lock file.
        lock: its path; default: see :func:`radioplat.spec.weights.lock.lock_path`.
        sha256: hash of the file of a web server, in hexadecimal digits.
        update: pin what the addresses stand for now, whatever was pinned.
        progress: called with bytes done and in all, for a file of a web server; the hub's client shows its own.

    Raises:
        SpecError: an address or the lock file is wrong, or there is nothing to fetch.
        WeightsError: the weights are not there, need a token, cannot be reached, or have another hash.
    """
    path = lock_path(lock)
    entries = read_lock(path)
    if not (wanted := list(addresses) or list(entries)):
        hint = "Give an address, for example timm:vit_small_patch14_dinov2.lvd142m, or -e SPEC."
        raise SpecError("there is nothing to fetch", where=str(path), hint=hint)
    for text in wanted:
        address, pinned = parse_address(text), None if update else entries.get(text)
        entry = _fetch(address, pinned, sha256, progress)
        if pinned and entry != pinned:
            raise WeightsError(_difference(entry, pinned), where=text, hint="To pin what is there now: --update.")
        if entry != entries.get(text):
            entries[text] = entry
            write_lock(path, entries)
        yield Fetched(text, folder_of(entry) / entry.value, entry, pinned is None)


def addresses_of(spec: Path) -> list[str]:
    """Return the addresses of weights in a spec file, each once.

    Raises:
        SpecError: the file cannot be read.
    """
    try:
        tree = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise SpecError("cannot read the spec", where=str(spec), hint="Give an existing YAML file to -e.") from None
    return list(dict.fromkeys(text for text in _texts(tree) if is_address(text)))


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _texts(inner)


def _fetch(address: Address, pinned: Entry | None, sha256: str, progress: Progress | None) -> Entry:
    if address.kind is Kind.timm:
        address = _of_timm(address)
    if address.kind is Kind.url:
        pin = next(iter(pinned.files.values())).sha256 if pinned else sha256
        return fetch_file(address, pin, progress)
    return fetch_repository(address, pinned)


def _of_timm(address: Address) -> Address:
    """Return where timm has the weights of a model."""
    import timm

    name = address.repository
    known = timm.models.get_pretrained_cfg(name, allow_unregistered=False) if timm.is_model(name) else None
    if known is None or not (known.hf_hub_id or known.url):
        near = timm.list_models(f"*{name.partition('.')[0]}*", pretrained=True)[:3] or timm.list_models("*dinov2*")[:3]
        hint = f"timm has, for example, {', '.join(near)}."
        raise WeightsError("timm has no pretrained weights of this name", where=address.text, hint=hint)
    if not known.hf_hub_id:
        return Address(address.text, Kind.url, file=str(known.url))
    repository = f"{known.hf_hub_id}{known.architecture}.{known.tag}" if known.hf_hub_id == "timm/" else known.hf_hub_id
    return Address(address.text, Kind.hub, repository, file=known.hf_hub_filename or "model.safetensors")


def _difference(entry: Entry, pinned: Entry) -> str:
    changed = [
        name for name in sorted({*entry.files, *pinned.files}) if entry.files.get(name) != pinned.files.get(name)
    ]
    return f"{', '.join(changed) or 'its revision'} is not what the lock file pins"
