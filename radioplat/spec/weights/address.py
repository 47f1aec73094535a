"""The address of weights: a repository of the Hugging Face hub, a model of timm, or a file of a web server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from radioplat.errors import SpecError

HUB, TIMM = "hf://", "timm:"
_FORMS = "hf://ORG/NAME, hf://ORG/NAME@REVISION, hf://ORG/NAME/FILE, timm:NAME or https://SERVER/FILE"
_HUB = re.compile(r"hf://([\w.-]+/[\w.-]+?)(?:@([\w./-]+?))?(?:/([\w./-]+))?")
_TIMM = re.compile(r"^(?:hf-hub:|hf_hub:)?timm[:/](?:timm/)?(?=[\w.-]+$)")


class Kind(str, Enum):
    """Where weights come from."""

    hub = "hub"
    timm = "timm"
    url = "url"


@dataclass(frozen=True)
class Address:
    """An address.

    Attributes:
        text: as the user wrote it; the key in the lock file.
        repository: on the hub, ``org/name``; the name of timm's model; else empty.
        revision: branch, tag or commit of the repository; empty for the newest.
        file: of the repository; empty for all of it.
        url: of a file of a web server.
    """

    text: str
    kind: Kind
    repository: str = ""
    revision: str = ""
    file: str = ""
    url: str = ""


def timm_name(text: str) -> str:
    """Return ``NAME`` for ``timm/NAME`` and ``timm:NAME``, with the tag of the weights if it has one.

    Any other text, ``package.module:Class`` too, is returned as it is.
    """
    return _TIMM.sub("", text, count=1)


def is_address(text: str | None) -> bool:
    """Return whether ``text`` is an address, not a path."""
    return bool(text) and str(text).startswith((HUB, TIMM, "https://", "http://"))


def parse_address(text: str, where: str = "") -> Address:
    """Read an address.

    Args:
        where: field of the spec, for messages; default: the text.

    Raises:
        SpecError: it has none of the forms.
    """
    if text.startswith(TIMM) and text.removeprefix(TIMM):
        return Address(text, Kind.timm, timm_name(text))
    if text.startswith(("https://", "http://")):
        server, _, path = text.partition("://")[2].partition("/")
        if "@" in server or "?" in path:
            hint = "The lock file and messages would have its secret: download the file yourself, and give its path."
            raise SpecError("an address with a password or a query", where=where or "ADDRESS", hint=hint)
        if path.rpartition("/")[2]:
            return Address(text, Kind.url, url=text)
    if matched := _HUB.fullmatch(text):
        repository, revision, file = matched.groups()
        return Address(text, Kind.hub, repository, revision or "", file or "")
    raise SpecError("this is no address of weights", where=where or text, hint=f"Give {_FORMS}, or a path.")


def parse_repository(text: str) -> Address:
    """Read the address of a whole repository of the hub, ``hf://ORG/NAME``.

    Raises:
        SpecError: it is another address, or none.
    """
    address = parse_address(text)
    if address.kind is not Kind.hub or address.file or address.revision:
        raise SpecError("this is no repository of the hub", where=text, hint="Give hf://ORG/NAME.")
    return address
