"""Scan one shard: byte range, size and format of each image, and the fields of its sidecars.

No member is extracted to disk, so that names such as ``../x`` are harmless.
"""

from __future__ import annotations

import re
from typing import Any

from radioplat.common.listing import first_few
from radioplat.data.images.headers import IMAGE_EXTENSIONS, ImageHeader, header_at
from radioplat.data.scan.names import shown_name, split_name
from radioplat.data.scan.sidecar import fields_of, label_fault, label_fields, parse_json
from radioplat.data.scan.tables import UNREADABLE, Fault, Scan, scan_row, scan_table
from radioplat.data.scan.tar import Damage, Member, walk_tar
from radioplat.data.storage.read_ahead import Window

MAX_SIDECAR_BYTES = 1 << 24
NAME_RULES = "2"  # number of the rules below; increased when they read other samples from the same names
_SIDECARS = frozenset({"json", "cls"})
# Last parts of extensions that name an image, as in webdataset.autodecode.IMAGE_EXTENSIONS; its content decides.
_IMAGE_NAMES = IMAGE_EXTENSIONS | {"tif", "jfif", "jpe", "jp2", "ppm", "pgm", "pbm", "pnm", "avif", "heic"}
_WANTED = _IMAGE_NAMES | _SIDECARS
_BITS = {extension: 1 << place for place, extension in enumerate(sorted(_WANTED))}
_is_meta = re.compile("__[^/]*__/").match  # webdataset.tariterators.tar_file_iterator, skip_meta


class _Sample:
    """Members of one key.

    Attributes:
        key: bytes that are not UTF-8 as surrogates.
        first: byte of the first member's header.
        bits: of the extensions of its members that have a bit, see ``_BITS``.
        image, header: the image.
        others: members whose extension ends like an image's (``rgb.jpg``), by extension; used if there is no image.
        other_header: of the first of ``others``; None if it is no image.
        has_fault: there is an unusable image.
        json, sidecar: fields of the JSON sidecar, and itself.
        cls: field of the ``.cls`` sidecar.
    """

    # Defaults of the class, and no list: what is made for each sample slows the scan of a large shard.
    bits = 0
    image: Member | None = None
    header: ImageHeader | None = None
    others: dict[str, Member] | None = None
    other_header: ImageHeader | None = None
    has_fault = False
    json: dict[str, Any] | None = None
    sidecar: Member | None = None
    cls: dict[str, Any] | None = None

    def __init__(self, key: str, first: int) -> None:
        self.key, self.first = key, first

    def fields(self) -> dict[str, Any] | None:
        """Return the fields of both sidecars; a label of the JSON replaces that of ``.cls``."""
        if not self.cls or not self.json:
            return self.json or self.cls
        return self.json if "given_label" in self.json or "label_name" in self.json else self.json | self.cls

    def repeats(self, earlier: _Sample) -> bool:
        """Return True if both have a member of the same name."""
        return bool(self.bits & earlier.bits or any(e in (earlier.others or ()) for e in self.others or ()))


def scan_tar(path: str, image_extension: str | None = None) -> Scan:
    """Scan the tar at ``path``; every problem with it becomes a fault, never an exception.

    Args:
        image_extension: of the member that is a sample's image, in lower case, for example ``rgb.jpg``; None: a member
            with one of ``IMAGE_EXTENSIONS``, or else the only one whose extension ends with an image's (``001.jpg``).
    """
    shard = _TarScan(path, image_extension)
    try:
        window = Window(path)
        if window.size == 0:
            shard.add_fault("", "empty_tar", "0 bytes")
        else:
            for item in walk_tar(window):
                shard.add(window, item)
    except OSError as error:
        shard.add_fault("", UNREADABLE, error.strerror or str(error))
    return shard.finish()


def scan_image(path: str, name: str) -> Scan:
    """Scan one image file of an ``images_dir``; its parent folder below the root, if any, is its label.

    Args:
        path: of the file.
        name: the path below ``images_dir``, with ``/``.
    """
    try:
        window = Window(path)
        header = header_at(window.read, lambda: window.span(0, window.size))
    except OSError as error:
        return Scan(scan_table([]), [Fault(path, name, UNREADABLE, error.strerror or str(error))], [])
    if header is None:
        return Scan(scan_table([]), [Fault(path, name, "not_an_image" if window.size else "empty_member")], [])
    if window.size > header.most_bytes:
        detail = f"{window.size} bytes for {header.width}x{header.height} pixels"
        return Scan(scan_table([]), [Fault(path, name, "too_many_bytes", detail)], [])
    parent = name.rpartition("/")[0].rpartition("/")[2]
    label = {"label_name": shown_name(parent)} if parent else None
    return Scan(scan_table([scan_row(shown_name(split_name(name)[0]), (0, window.size, header), label)]), [], [None])


class _TarScan:
    """Samples and faults of one tar during its scan.

    As in webdataset, neighbouring members with one key are one sample. Members of a key that comes again later belong
    to its sample too, so that a tar in any order can be read; but if one of their names comes a second time, they are a
    new sample, as in two tars that were joined.
    """

    def __init__(self, path: str, image_extension: str | None) -> None:
        self._path = path
        self._chosen = image_extension or ""
        self._images = frozenset({self._chosen}) if self._chosen else IMAGE_EXTENSIONS
        self._bits = _BITS | {self._chosen: 1 << len(_BITS)} if self._chosen else _BITS
        self._key = ""  # of the last member
        self._sample: _Sample | None = None  # of it and its neighbours; None if none of them is wanted
        self._samples: list[_Sample] = []
        self._last_of: dict[str, _Sample] = {}  # the last sample of each key
        self._faults: list[Fault] = []

    def add_fault(self, key: str, reason: str, detail: str = "", offset: int = -1, length: int = 0) -> None:
        """Note a fault; ``offset`` and ``length`` of the member, in bytes."""
        self._faults.append(Fault(self._path, shown_name(key), reason, shown_name(detail), offset, length))

    def add(self, window: Window, item: Member | Damage) -> None:
        """Add a member to its sample, or note why it is in none."""
        if isinstance(item, Damage):
            self.add_fault(item.name, item.reason, item.detail, item.offset, item.length)
            return
        if item.kind == "folder":
            return
        key, extension = split_name(item.name)
        if key != self._key:
            self._close()
            self._key = key
        is_image = extension in self._images
        if not is_image and extension not in _WANTED and extension.rpartition(".")[2] not in _WANTED:
            return
        if not key or key[-1] == "/":
            self._add_member_fault(item, item.name, "hidden_member", "the name starts with a dot")
            return
        if key[:2] == "__" and _is_meta(key):
            detail = "a folder named __...__ contains no samples but data about the shard"
            self._add_member_fault(item, item.name, "hidden_member", detail)
            return
        sample = self._sample
        if sample is None:
            sample = self._sample = _Sample(key, item.header)
        sample.bits |= self._bits.get(extension, 0)
        if item.kind == "other":
            sample.has_fault |= is_image
            self._add_member_fault(item, item.name, "not_a_file", "a link or a sparse or special file")
        elif is_image:
            self._add_image(window, item, sample)
        elif extension in _SIDECARS:
            self._add_sidecar(window, item, extension, sample)
        elif extension.rpartition(".")[2] in _IMAGE_NAMES:
            self._add_other(window, item, extension, sample)

    def finish(self) -> Scan:
        """Return all samples and faults, after the last member."""
        self._close()
        for sample in self._samples:
            if sample.image is None and not sample.has_fault:
                self._take_other(sample)
        if not self._samples and not self._faults:
            self.add_fault("", "empty_tar", "no members")
        rows, sidecars = [], []
        for sample in sorted(self._samples, key=_place):
            if sample.image is not None and sample.header is not None:
                image = sample.image.offset, sample.image.size, sample.header
                rows.append(scan_row(shown_name(sample.key), image, sample.fields()))
                sidecars.append(sample.sidecar)
        return Scan(scan_table(rows), self._faults, sidecars)

    def _close(self) -> None:
        """End the sample of the last members; it continues an earlier one of its key or is a new one."""
        sample, self._sample = self._sample, None
        if sample is None:
            return
        earlier = self._last_of.get(sample.key)
        if earlier is None or sample.repeats(earlier):
            self._samples.append(sample)
            self._last_of[sample.key] = sample
            return
        earlier.bits |= sample.bits
        if earlier.others is None:
            earlier.others, earlier.other_header = sample.others, sample.other_header
        elif sample.others is not None:
            earlier.others.update(sample.others)
        earlier.has_fault |= sample.has_fault
        if sample.json is not None:
            earlier.json, earlier.sidecar = sample.json, sample.sidecar
        earlier.cls = earlier.cls if sample.cls is None else sample.cls
        if earlier.image is None:
            earlier.image, earlier.header = sample.image, sample.header
        elif sample.image is not None:
            self._add_second(sample.image)

    def _take_other(self, sample: _Sample) -> None:
        """Make the only member whose extension ends like an image's the sample's image, or add a fault."""
        others = sample.others or {}
        if self._chosen or not others:
            wanted = f"the extension {self._chosen} (image_extension)" if self._chosen else "an image extension"
            extensions = sorted({*others, *(e for e, bit in self._bits.items() if bit & sample.bits)})
            detail = f"no member has {wanted}" + (f"; there are {first_few(extensions, 5)}" if extensions else "")
            self.add_fault(sample.key, "no_image", detail, sample.first)
        elif len(others) == 1:
            self._set_image(next(iter(others.values())), sample.other_header, sample)
        else:
            detail = (
                f"{first_few(sorted(others), 5)}: set image_extension of the source to the one to read; if these are "
                "images of their own, replace the first dot in the names"
            )
            self.add_fault(sample.key, "several_images", detail, sample.first)

    def _add_image(self, window: Window, member: Member, sample: _Sample) -> None:
        if sample.image is not None:
            self._add_second(member)
        else:
            self._set_image(member, _header(window, member), sample)

    def _add_other(self, window: Window, member: Member, extension: str, sample: _Sample) -> None:
        if sample.others is None:
            sample.others = {}
            if not self._chosen and sample.image is None:
                sample.other_header = _header(window, member)
        if extension in sample.others:
            self._add_second(member)
        else:
            sample.others[extension] = member

    def _set_image(self, member: Member, header: ImageHeader | None, sample: _Sample) -> None:
        if header is not None and member.size <= header.most_bytes:
            sample.image, sample.header = member, header
            return
        sample.has_fault = True
        if header is not None:
            detail = f"{member.name} has {member.size} bytes for {header.width}x{header.height} pixels"
            self._add_member_fault(member, sample.key, "too_many_bytes", detail)
            return
        self._add_member_fault(member, sample.key, "not_an_image" if member.size else "empty_member", member.name)

    def _add_second(self, member: Member) -> None:
        """Add the fault of an image or a sidecar of which the sample has one already."""
        key = split_name(member.name)[0]
        self._add_member_fault(member, key, "duplicate_key", f"{member.name} at byte {member.offset}")

    def _add_sidecar(self, window: Window, member: Member, kind: str, sample: _Sample) -> None:
        key, name = sample.key, member.name
        if (sample.json if kind == "json" else sample.cls) is not None:
            self._add_second(member)
            return
        if member.size > MAX_SIDECAR_BYTES:
            self._add_member_fault(member, key, "bad_sidecar", f"{name} has {member.size} bytes")
            return
        data = window.read(member.offset, member.size)
        try:
            if kind == "cls":
                sample.cls = label_fields(data.decode().strip())
                return
            content = parse_json(data)
            fields = fields_of(content)
        except (ValueError, RecursionError) as error:
            self._add_member_fault(member, key, "bad_sidecar", f"{name}: {error}")
            return
        if wrong := label_fault(content):
            self._add_member_fault(member, key, "bad_sidecar", f"{name}: {wrong}")
        if fields.pop("caption", None) is not None:
            fields["caption_offset"], fields["caption_length"] = member.offset, member.size
        sample.json, sample.sidecar = fields, member

    def _add_member_fault(self, member: Member, key: str, reason: str, detail: str = "") -> None:
        self.add_fault(key, reason, detail, member.header, member.offset + member.size - member.header)


def _place(sample: _Sample) -> int:
    return sample.image.offset if sample.image else -1


def _header(window: Window, member: Member) -> ImageHeader | None:
    """Read the header of an image; None if it is empty or no image."""
    offset, size = member.offset, member.size

    def read(at: int, length: int) -> bytes:
        """Return up to ``length`` bytes at ``at`` of the member."""
        return window.read(offset + at, min(length, size - at)) if at < size else b""

    return header_at(read, lambda: window.span(offset, size)) if size else None
