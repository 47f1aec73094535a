"""Find images with masks in folders or shards, and split them into training and held-out ones; nothing is decoded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from radioplat.data.detection.boxes import Faults
from radioplat.data.images.headers import IMAGE_EXTENSIONS
from radioplat.data.scan.names import split_name
from radioplat.data.scan.tar import Member, walk_tar
from radioplat.data.storage.files import FileState, absolute, list_files, read_range, stat_file
from radioplat.data.storage.read_ahead import Window
from radioplat.errors import DataError
from radioplat.spec.schema.evaluate import MaskedConfig

_IMAGES = IMAGE_EXTENSIONS | {"tif"}
_MASK = "mask"
_MASK_MEMBER = "seg.png"


@dataclass(frozen=True)
class Place:
    """The location of a file's bytes.

    Attributes:
        length: bytes from ``offset``; None: up to the end.
    """

    path: str
    offset: int = 0
    length: int | None = None

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            OSError: they cannot be read.
        """
        length = stat_file(self.path).size if self.length is None else self.length
        return read_range(self.path, self.offset, length)


@dataclass(frozen=True)
class Sample:
    """The images of a sample, in the order of the section's roles, and their mask; ``name`` is unique in its split."""

    name: str
    images: tuple[Place, ...]
    mask: Place


@dataclass
class Samples:
    """Usable samples, and the faults of the others.

    Attributes:
        training, held_out: sorted by name.
        faults: samples that were left out: ``no_mask``, ``no_image`` (or the missing role: ``no_after``),
            ``duplicate_name``, and faults of shards (:class:`radioplat.data.scan.tables.Fault`). Decoding later adds
            ``unreadable``, ``size_mismatch``, ``bad_mask`` and ``unknown_class``.
    """

    training: list[Sample]
    held_out: list[Sample]
    faults: Faults = field(default_factory=Faults)


def find_samples(config: MaskedConfig, where: str) -> Samples:
    """Return the training and the held-out samples of a section of the spec.

    If the spec has no separate held-out folders, ``val_share`` of all samples are held out: those whose names have the
    smallest sha256, so the split depends on the names alone.

    Args:
        where: the section's path in the spec, for messages.

    Raises:
        DataError: a folder is missing, or there are too few usable samples.
    """
    faults = Faults()
    samples = _all(config, "", where, faults)
    if config.val_shards_dir or config.val_masks_dir:
        training, held_out = samples, _all(config, "val_", where, faults)
    else:
        ranked = sorted(samples, key=_rank)
        count = max(1, round(config.val_share * len(samples)))
        held_out, training = _sorted(ranked[:count]), _sorted(ranked[count:])
    if len(training) < 2:  # one to fit, one to compare weight decays
        first = "shards" if config.shards_dir else config.roles[0]
        hint = "Give more, or held-out ones apart."
        raise DataError(
            f"at least two training images with masks are needed, and there are {len(training)}",
            where=f"{where}.{first}_dir",
            hint=f"{hint} Left out: {left_out(faults)}" if faults.counts else hint,
        )
    return Samples(_at_most(training, config.max_images), _at_most(held_out, config.max_images), faults)


def left_out(faults: Faults) -> str:
    """Return the number of each fault, and the name of its first sample."""
    first: dict[str, str] = {}
    for reason, name in faults.named:
        first.setdefault(reason, name)
    return "; ".join(f"{faults.counts[reason]} {reason} ({name})" for reason, name in sorted(first.items()))


def _all(config: MaskedConfig, split: str, where: str, faults: Faults) -> list[Sample]:
    shards = getattr(config, f"{split}shards_dir")
    roles = [*config.roles, _MASK]
    if shards:
        places_of, field_ = _in_shards(shards, config, f"{where}.{split}shards_dir", faults), f"{split}shards_dir"
    else:
        fields = [f"{split}{role}_dir" for role in config.roles] + [f"{split}masks_dir"]
        places_of = {}
        for role, name in zip(roles, fields, strict=True):
            endings = {"png"} if role == _MASK else _IMAGES
            for key, place in _in_folder(getattr(config, name), endings, f"{where}.{name}", faults).items():
                places_of.setdefault(key, {})[role] = place
        field_ = f"{split}masks_dir"
    samples = []
    for name, places in sorted(places_of.items()):
        if missing := [role for role in roles if role not in places]:
            faults.add("no_image" if missing[0] == "images" else f"no_{missing[0]}", name)
            continue
        samples.append(Sample(name, tuple(places[role] for role in config.roles), places[_MASK]))
    if not samples:
        raise DataError("no image has its mask here", where=f"{where}.{field_}", hint=f"Left out: {left_out(faults)}")
    return samples


def _files(folder: str, wanted: Callable[[str], bool], where: str) -> list[tuple[str, FileState]]:
    try:
        return list_files(absolute(folder), wanted)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"no such folder: {folder}", where=where) from None
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror or error}", where=where) from None


def _in_folder(folder: str, endings: Iterable[str], where: str, faults: Faults) -> dict[str, Place]:
    root = absolute(folder)
    suffixes = tuple(f".{ending}" for ending in endings)
    files = _files(folder, lambda name: name.lower().endswith(suffixes), where)
    places_of: dict[str, Place] = {}
    for path, state in files:
        name = path.rpartition(".")[0]
        if name in places_of:
            faults.add("duplicate_name", f"{root}/{path}")
            continue
        places_of[name] = Place(f"{root}/{path}", 0, state.size)
    if not places_of:
        kind = "PNG" if tuple(endings) == ("png",) else "image"
        raise DataError(f"{folder} holds no {kind}", where=where)
    return places_of


def _in_shards(folder: str, config: MaskedConfig, where: str, faults: Faults) -> dict[str, dict[str, Place]]:
    root = absolute(folder)
    shards = _files(folder, lambda name: name.endswith(".tar"), where)
    if not shards:
        raise DataError(f"{folder} holds no .tar", where=where)
    roles = {f"{member}{e}": role for role, member in zip(config.roles, config.members, strict=True) for e in _IMAGES}
    roles[_MASK_MEMBER] = _MASK
    places_of: dict[str, dict[str, Place]] = {}
    for shard, _ in shards:
        path = f"{root}/{shard}"
        try:
            for member in walk_tar(Window(path)):
                if not isinstance(member, Member):
                    faults.add(member.reason, path)
                    continue
                key, extension = split_name(member.name)
                role = roles.get(extension)
                if role is None or member.kind != "file":
                    continue
                # Names that are not UTF-8 are escaped: they are written to results.json.
                name = json.dumps(f"{shard}:{key}")[1:-1]
                places = places_of.setdefault(name, {})
                if role in places:
                    faults.add("duplicate_name", f"{path}: {member.name!r}")
                    continue
                places[role] = Place(path, member.offset, member.size)
        except OSError as error:
            faults.add("unreadable_shard", f"{path}: {error.strerror or error}")
    return places_of


def _rank(sample: Sample) -> bytes:
    return hashlib.sha256(sample.name.encode()).digest()


def _sorted(samples: list[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: sample.name)


def _at_most(samples: list[Sample], limit: int | None) -> list[Sample]:
    return samples if limit is None else _sorted(sorted(samples, key=_rank)[:limit])
