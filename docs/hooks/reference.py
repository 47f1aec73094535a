"""Adds the generated reference to the site, and links each field and command that a page names to it."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import command_page
import field_pages
import python_page
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_PLACES = 3  # where a field is mentioned: so many links
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# Of a page's HTML: a link, a heading and a block of code, which stay, or a piece of code
_HTML = re.compile(r"<a\b.*?</a>|<h\d.*?</h\d>|<pre\b.*?</pre>|<code>([^<]+)</code>", re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of fields into the navigation, where it names their folder."""
    pages = [f"{field_pages.FOLDER}index.md", *(f"{field_pages.FOLDER}{s.path}.md" for s in field_pages.sections())]
    config.nav = _with_pages(config.nav, field_pages.FOLDER, pages)
    return config


def _with_pages(nav, folder: str, pages: list[str]):
    if isinstance(nav, list):
        return [_with_pages(each, folder, pages) for each in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(each, folder, pages) for title, each in nav.items()}
    return pages if nav == folder else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    workers = next(file.src_uri for file in files if file.name == "workers")
    pages = {
        **field_pages.field_pages(_mentions(files)),
        command_page.ADDRESS: command_page.command_page(
            os.path.relpath(workers, os.path.dirname(command_page.ADDRESS))
        ),
        python_page.ADDRESS: python_page.python_page(),
    }
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def _mentions(files: Files) -> dict[str, list[str]]:
    """Return links, relative to the pages of fields, to the headings under which pages name a field."""
    places: dict[str, list[str]] = defaultdict(list)
    for page in files:
        if not page.is_documentation_page() or not page.abs_src_path or page.name in ("architecture", "changelog"):
            continue
        text = re.sub(r"```.*?```", "", Path(page.abs_src_path).read_text(encoding="utf-8"), flags=re.S)
        title = heading = page.name
        for part in re.split(r"^(?=#+ )", text, flags=re.M):
            if match := re.match(r"(#+) (.*)", part):
                heading = match[2].replace("`", "")
                title = heading if match[1] == "#" else title
            at = f"{os.path.relpath(page.src_uri, field_pages.FOLDER)}#{slugify(heading, '-')}"
            name = title if heading == title else f"{title}: {heading}"
            link = f"[{name}]({at})"
            for code in _CODE.findall(part):
                field = field_pages.field_named(code)
                if field and link not in places[field.path] and len(places[field.path]) < _PLACES:
                    places[field.path].append(link)
    return dict(places)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link code that names a field or a command."""
    here = page.file.src_uri

    def linked(match: re.Match[str]) -> str:
        address = _reference_of(match[1]) if match[1] else None
        if not address or address.startswith(f"{here}#"):
            return match[0]
        uri, _, anchor = address.partition("#")
        target = files.get_file_from_path(uri)
        assert target is not None
        return f'<a href="{target.url_relative_to(page.file)}#{anchor}">{match[0]}</a>'

    return _HTML.sub(linked, html)


def _reference_of(code: str) -> str | None:
    """Return the address in the site of the field or command that code names."""
    if field := field_pages.field_named(code):
        return field_pages.address_of(field)
    if command := command_page.command_named(code):
        return f"{command_page.ADDRESS}#{command_page.anchor_of(command)}"
    return None
