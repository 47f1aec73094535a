"""The reference of the command line, from its parser."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

from radioplat.cli.parser import build_parser

ADDRESS = "reference/commands.md"
_INTRODUCTION = """# Commands

Every command with its arguments; `radioplat COMMAND --help` prints the same. Overrides are fields of the spec,
`key=value` ([fields](fields/index.md)).
[Exit statuses](WORKERS#exit-status).
"""


def commands(
    parser: argparse.ArgumentParser | None = None, name: str = "radioplat"
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield the name, the help text and the parser of each command, ``radioplat weights fetch`` for example."""
    parser = parser or build_parser("radioplat")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for verb, below in action.choices.items():
                yield f"{name} {verb}", texts[verb], below
                yield from commands(below, f"{name} {verb}")


def anchor_of(name: str) -> str:
    """Return the anchor of a command's heading."""
    return name.replace(" ", "-")


def command_named(text: str) -> str | None:
    """Return the command that a piece of code begins with, the longest name that fits."""
    words = text.split()
    return next((name for n in (3, 2) if (name := " ".join(words[:n])) in _command_names()), None)


@functools.cache
def _command_names() -> frozenset[str]:
    return frozenset(name for name, _, _ in commands())


def command_page(workers: str) -> str:
    """Return the page; ``workers`` is the relative address of the page about exit statuses."""
    return _INTRODUCTION.replace("WORKERS", workers) + "".join(_command(*each) for each in commands())


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> str:
    lines = [f"\n## {name} {{ #{anchor_of(name)} }}\n", " ".join(_plain(parser.description or text).split()) + "\n"]
    actions = [
        action
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
    ]
    if actions:
        usage = " ".join(parser.format_usage().split()).removeprefix("usage: ").replace(" [-h]", "")
        lines += [f"```\n{usage}\n```\n", "| argument | meaning |", "|---|---|"]
        lines += [
            f"| {_names(action)} | {_plain(action.help or '').replace('|', '&#124;')}{_choices(action)} |"
            for action in actions
        ]
    return "\n".join(lines) + "\n"


def _names(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    names = [f"{option} {value}".strip() for option in action.option_strings] or [str(action.metavar or action.dest)]
    return ", ".join(f"`{name.replace('|', '/')}`" for name in names)


def _choices(action: argparse.Action) -> str:
    words = f" ({', '.join(f'`{choice}`' for choice in action.choices)})" if action.choices else ""
    return words + (" **required**" if action.required and action.option_strings else "")


def _plain(text: str) -> str:
    return text.replace("``", "`").replace("%%", "%").replace("<", "&lt;").replace("*", "\\*")
