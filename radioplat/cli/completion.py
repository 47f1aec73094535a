"""``radioplat completion``: a shell completes commands, options, spec files, and fields of the spec with their values.

The script that a shell loads calls the command itself with ``_ARGCOMPLETE`` set, so it never is of an older version.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("radioplat", "radio")


def completion(args: argparse.Namespace) -> None:
    """Print the script by which a shell completes commands, options, spec files and fields."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(PROGRAMS, shell=args.shell))


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``completion``."""
    parser.add_argument("shell", choices=SHELLS, help="for example: source <(radioplat completion bash)")


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Write the completions that a shell asks for, and exit; do nothing in any other process."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    for action in _actions(parser):
        if action.dest == "spec":
            action.completer = argcomplete.FilesCompleter(("yaml", "yml"))  # type: ignore[attr-defined]
        elif action.dest == "overrides":
            action.completer = _overrides  # type: ignore[attr-defined]
        elif action.dest == "fields":
            action.completer = _fields  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                yield from _actions(inner)
        else:
            yield action


def _fields(prefix: str, **_: object) -> list[str]:
    """Return the paths of all fields."""
    from radioplat.spec.loading.fields import walk
    from radioplat.spec.schema.root import Spec

    return [entry.path for entry in walk(Spec) if entry.path.startswith(prefix)]


def _overrides(prefix: str, **_: object) -> list[str]:
    """Return ``field=`` for each field that has a value, or after the sign the values of that field."""
    from radioplat.spec.loading.fields import ITEM, innermost, walk
    from radioplat.spec.schema.root import Spec

    name, sign, _value = prefix.partition("=")
    kinds = {entry.path.replace(ITEM, "[0]"): innermost(entry.kind) for entry in walk(Spec)}
    if not sign:
        return [f"{path}=" for path, kind in kinds.items() if path.startswith(name) and not is_dataclass(kind)]
    kind = kinds.get(name)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [f"{name}={member.value}" for member in kind]
    return [f"{name}=true", f"{name}=false"] if kind is bool else []
