"""Links between the pages lead somewhere, README reaches every page, the glossary is alphabetical."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", PAGES[page], flags=re.S)


def links(page: Path) -> list[str]:
    """Targets of the links of a page that stay in this checkout."""
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not link.startswith("http")]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_names_a_file_and_a_heading_that_exist():
    broken = []
    for page in PAGES:
        for link in links(page):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_readme_reaches_every_page_and_the_user_guide_the_main_ones():
    reached = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    assert {page for page in PAGES if page.parent.name == "docs"} <= reached
    guide = {link.partition("#")[0] for link in links(ROOT / "docs" / "user_guide.md")}
    assert {"glossary.md", "data.md", "teachers.md", "training.md", "compression.md"} <= guide


def test_the_glossary_is_alphabetical():
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGES[ROOT / "docs" / "glossary.md"], re.M)
    assert len(terms) > 40
    assert terms == sorted(terms, key=str.lower)
