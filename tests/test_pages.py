"""Links, spec fields and commands of the pages exist, README reaches every page, the glossary is alphabetical."""

from __future__ import annotations

import ast
import dataclasses
import pkgutil
import re
import shlex
import typing
from pathlib import Path

import pytest
import yaml

import radioplat
from radioplat.cli.parser import build_parser
from radioplat.spec.loading.fields import faults
from radioplat.spec.schema.root import Spec
from radioplat.tasks.pipeline.dag import PipelineConfig

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}


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


def test_pages_that_readme_links_to_reach_every_page():
    reached, found = set(), {ROOT / "README.md"}
    while found:
        page = found.pop()
        reached.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        found |= (targets & PAGES.keys()) - reached
    assert {page for page in PAGES if page.parent != ROOT} - reached == set()


def test_the_glossary_is_alphabetical():
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGES[ROOT / "docs" / "reference" / "glossary.md"], re.M)
    assert len(terms) > 40
    assert terms == sorted(terms, key=str.lower)


def blocks(*languages: str) -> list[tuple[str, str]]:
    """Code blocks of the pages in one of the languages, each after its page's name and number."""
    found = []
    for page, text in PAGES.items():
        for number, (language, block) in enumerate(re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.S | re.M)):
            found += [(f"{page.stem}-{number}", block)] if language in languages else []
    return found


def spec_blocks() -> list[typing.Any]:
    """Each YAML block of the pages that is a part of a spec; ``, ...}`` and ``[...]`` stand for more of the same."""
    params = []
    for name, block in blocks("yaml"):
        tree = yaml.safe_load(re.sub(r",? *\.\.\.(?=[]}])", "", block))
        if not {"parameters", "nodes"} & tree.keys():  # else it is a search space, or a pipeline
            params.append(pytest.param(tree, id=name))
    return params


def test_a_pipeline_of_a_page_is_one():
    trees = [tree for _, block in blocks("yaml") if "nodes" in (tree := yaml.safe_load(block))]
    assert trees and all(list(faults(tree, PipelineConfig, "", PipelineConfig)) == [] for tree in trees)


@pytest.mark.parametrize("tree", spec_blocks())
def test_a_yaml_block_is_part_of_a_spec(tree):
    assert isinstance(radioplat.load_spec(tree), Spec)


def unknown_part(path: list[str]) -> str | None:
    """The first name of a dotted field that the spec's dataclasses do not have."""
    kind: typing.Any = Spec
    for name in path:
        if not dataclasses.is_dataclass(kind):
            return None  # below a free mapping
        hints = typing.get_type_hints(kind)
        if name not in hints:
            return name
        kind = hints[name]
        while inner := [arg for arg in typing.get_args(kind) if arg is not type(None)]:
            kind = inner[-1]
    return None


# Not fields: prefixes in files of weights, two names of TAO's DINO spec, and a misspelling in a message.
PREFIXES = {"model.net.backbone", "model.encoder", "model.model.backbone", "model.model.backbone.0.body"}
NO_FIELDS = PREFIXES | {"model.backbone.0.body", "model.distillation_loss_coef", "train.optim.lrr"}


def test_every_dotted_field_of_the_pages_exists():
    sections = "|".join(field.name for field in dataclasses.fields(Spec) if field.name != "teachers")
    field = re.compile(rf"(?<![\w./-])(?:{sections})(?:\.\w+)+(?![\w/(])")
    seen: dict[str, str] = {}
    for page, text in PAGES.items():
        if page.name not in ("architecture.md", "CHANGELOG.md"):
            # Without indices, and without blocks of a student's backbone, as `prune` prints them.
            names = field.findall(re.sub(r"\[\w+\]|\bmodel\.blocks\.\d[.\d]*", "", text))
            seen |= {name: page.name for name in names if not name.endswith((".md", ".json", ".html", ".py"))}
    unknown = {name: page for name, page in seen.items() if name not in NO_FIELDS and unknown_part(name.split("."))}
    assert unknown == {} and len(seen) > 100


def python_names() -> list[str]:
    """Dotted names of the package in the pages: ``radioplat.load_student``, modules, their functions."""
    return sorted(
        {name for text in PAGES.values() for name in re.findall(r"(?<![\w./-])radioplat(?:\.[a-z_]\w*)+", text, re.I)}
    )


@pytest.mark.parametrize("name", python_names())
def test_a_dotted_name_of_the_package_exists(name):
    pkgutil.resolve_name(name)


def commands() -> list[typing.Any]:
    """Each command of radioplat in the code blocks of the pages, without variables before it and pipes behind it."""
    found = []
    for name, block in blocks("", "bash", "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^(?:[A-Z_]+=\S* )*", "", line.strip().removeprefix("$ "))
            words = shlex.split(line, comments=True) if line.startswith("radioplat ") else []
            if words and "..." not in words:
                end = next((n for n, word in enumerate(words) if re.match(r"[|>&;]|2>", word)), len(words))
                found.append(pytest.param(words[1:end], id=f"{name}: {' '.join(words[1:end])}"))
    return found


@pytest.mark.parametrize("words", commands())
def test_a_command_of_the_pages_is_one_that_the_parser_takes(words):
    build_parser("radioplat").parse_args(words)


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in blocks("python")])
def test_a_python_block_is_python(block):
    compile(block, "block", "exec")


def source_texts() -> list[str]:
    """For each file of the package, its string constants, with a gap where an f-string has a value."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "radioplat").rglob("*.py")]
    texts = []
    for tree in trees:
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str]
        texts.append("\n".join(strings))
    return texts


def test_messages_of_the_page_on_troubleshooting_are_in_the_source():
    page = PAGES[ROOT / "docs" / "reference" / "troubleshooting.md"]
    messages = re.findall(r"^\| `(.+?)` \|", page, re.M)
    sources = source_texts()
    parts = {message: [part.strip() for part in message.split("…")] for message in messages}
    missing = [m for m, each in parts.items() if not any(all(part in text for part in each) for text in sources)]
    assert missing == [] and len(messages) > 30
