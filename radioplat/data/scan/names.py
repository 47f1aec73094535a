"""Names of files and tar members."""

from __future__ import annotations


def split_name(name: str) -> tuple[str, str]:
    """Split a name at the first dot of its base name: key, with the folder, and lower-case extension.

    Equals webdataset.tariterators.base_plus_ext; for a name that it skips, the key is empty or ends with a slash, or
    the extension is empty.
    """
    dot = name.find(".", name.rfind("/") + 1)
    return (name[:dot], name[dot + 1 :].lower()) if dot >= 0 else (name, "")


def shown_name(name: str) -> str:
    """Replace bytes of a file's or tar member's name that are not UTF-8, which Arrow requires."""
    return name if name.isascii() else name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
