"""Puts files from outside docs/ that pages link to into the site, and turns the links to where they are there.

README, CONTRIBUTING and the like become pages; specs and other files are copied as they are.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Pages of the root: their addresses in the site
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contribute/contributing.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "SECURITY.md": "contribute/security.md",
}
# A link or picture, with fences and inline code as alternatives that come first, so that no link is found in them
_LINK = re.compile(r"^( *)(`{3,}).*?^\1\2`*\s*$|`(?:[^`\n]|\n(?!\n))*`|(?<=\]\()([^)\s#]+)", re.M | re.S)


def link_targets(markdown: str) -> list[str]:
    """Return the targets of all links without their anchors, those in code left out."""
    return [match[3] for match in _LINK.finditer(markdown) if match[3]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and every file outside docs/ that a page links to."""
    docs = Path(config.docs_dir)
    for name, address in PAGES.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / name)))
    for page in [file for file in files if file.is_documentation_page() and file.abs_src_path]:
        text = Path(page.abs_src_path).read_text(encoding="utf-8")
        for target in filter(None, (_file_of(page, link) for link in link_targets(text))):
            address = _address(target, docs)
            if target.is_file() and not target.is_relative_to(docs) and files.get_file_from_path(address) is None:
                files.append(File.generated(config, address, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/, and the links of pages from there, to their addresses in the site."""
    docs, folder = Path(config.docs_dir), os.path.dirname(page.file.src_uri)

    def turned(match: re.Match[str]) -> str:
        target = _file_of(page.file, match[3]) if match[3] else None
        if target is None or files.get_file_from_path(_address(target, docs)) is None:
            return match[0]
        return os.path.relpath(_address(target, docs), folder or ".")

    return _LINK.sub(turned, markdown)


def _file_of(page: File, link: str) -> Path | None:
    """Return the file of the checkout that a page's link names; None for an address of the web, or a generated page."""
    if "://" in link or link.startswith("mailto:") or not page.abs_src_path:
        return None
    return (Path(page.abs_src_path).parent / unquote(link)).resolve()


def _address(target: Path, docs: Path) -> str:
    if target.is_relative_to(docs):
        return target.relative_to(docs).as_posix()
    name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else target.name
    return PAGES.get(name, name)
