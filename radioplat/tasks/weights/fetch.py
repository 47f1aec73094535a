"""``radioplat weights fetch``: download weights once, and pin their hashes in the lock file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from radioplat.errors import SpecError, WeightsError
from radioplat.spec.loading.weights_fields import WEIGHTS
from radioplat.spec.weights.address import Address, Kind, is_address, parse_address
from radioplat.spec.weights.local import folder_of
from radioplat.spec.weights.lock import Entry, add_to_lock, lock_path, read_lock
from radioplat.tasks.teachers.known import pretrained_cfg
from radioplat.tasks.weights.hub import fetch_repository
from radioplat.tasks.weights.web import Progress, fetch_file


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
    parsed = [parse_address(text) for text in wanted]
    if sha256 and [each.kind for each in parsed] != [Kind.url]:
        hint = "The hub's files have their commit: hf://ORG/NAME@COMMIT."
        raise SpecError("it is the hash of one file of a web server", where="--sha256", hint=hint)
    for text, address in zip(wanted, parsed, strict=True):
        pinned = None if update else entries.get(text)
        entry = _fetch(address, pinned, sha256, update, progress)
        if pinned and entry != pinned:
            hint = f"Compare them with their source; remove {folder_of(pinned)} to fetch them again."
            raise WeightsError(_difference(entry, pinned), where=text, hint=hint)
        if entry != entries.get(text):
            add_to_lock(path, text, entry)
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
    if not (addresses := list(dict.fromkeys(_named(tree)))):
        raise SpecError("no field names weights by their address", where=str(spec))
    return addresses


def _named(tree: Any) -> Iterator[str]:
    """Yield the addresses in fields that name weights, at any depth."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name in WEIGHTS:
            yield from (text for text in (value if isinstance(value, list) else [value]) if is_address(text))
        else:
            yield from _named(value)
    for inner in tree if isinstance(tree, list) else ():
        yield from _named(inner)


def _fetch(address: Address, pinned: Entry | None, sha256: str, update: bool, progress: Progress | None) -> Entry:
    if address.kind is Kind.timm and not (pinned and pinned.repository):
        address = _of_timm(address)
    if address.kind is Kind.url:
        pin = next(iter(pinned.files.values())).sha256 if pinned else sha256
        if sha256 and sha256.lower() != pin.lower():
            hint = "To pin the other: --update."
            raise WeightsError("the lock file pins a file with another sha256", where=address.text, hint=hint)
        return fetch_file(address, pin, progress)
    return fetch_repository(address, pinned, again=update)


def _of_timm(address: Address) -> Address:
    """Return where timm has the weights of a model."""
    import timm

    name = address.repository
    if (known := pretrained_cfg(name)) is None:
        near = timm.list_models(f"*{name.partition('.')[0]}*", pretrained=True)[:3]
        near = near or timm.list_models("*dinov2*", pretrained=True)[:3]
        hint = f"timm has, for example, {', '.join(near)}."
        raise WeightsError("timm has no pretrained weights of this name", where=address.text, hint=hint)
    if not known.hf_hub_id:
        return Address(address.text, Kind.url, url=str(known.url))
    repository = f"{known.hf_hub_id}{known.architecture}.{known.tag}" if known.hf_hub_id == "timm/" else known.hf_hub_id
    return Address(address.text, Kind.hub, repository, file=known.hf_hub_filename or "model.safetensors")


def _difference(entry: Entry, pinned: Entry) -> str:
    changed = [
        name for name in sorted({*entry.files, *pinned.files}) if entry.files.get(name) != pinned.files.get(name)
    ]
    return f"{', '.join(changed) or 'its revision'} is not what the lock file pins"
