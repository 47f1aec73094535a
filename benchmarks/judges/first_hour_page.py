"""The code blocks of a page as steps that a reader takes. Imports nothing of radioplat.

- A YAML block is a file if the paragraph before it names it: ``Save this as `first.yaml` `` writes it, and
  `` `small.yaml` is `first.yaml` with ... `` adds the block to another file. Other YAML blocks only explain.
- A block of Python is a program, and a block without a language that follows it at once is its output.
- In a block without a language, lines that begin with ``$`` are commands, and what follows each is its output. Without
  such a line it is all commands if its first word is a program, else output; after 'the same command again' it is the
  output of the last command, given once more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.S | re.M)
_NAMED = re.compile(r"[Ss]aved? (?:this )?as\s+`(\S+\.yaml)`")
_MERGED = re.compile(r"`(\S+\.yaml)` is `(\S+\.yaml)` with")
_AGAIN = re.compile(r"same\s+command\s+again", re.I)
_SHELL = ("", "bash", "sh", "console")
_PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(radioplat|python3?|pip|ray|sky|kubectl|sbatch|docker|scp|ssh|mkdir|tar|for|sed|kill|export|cd"
    r"|clusters/\S+|\./\S+|/usr/bin/time)\b"
)


@dataclass(frozen=True)
class Step:
    """One step of a page.

    Attributes:
        kind: ``write``, ``merge``, ``python`` or ``run``.
        text: the file's content, the program, or the command.
        name: of the file; empty for a program or a command.
        base: the file that ``text`` is added to, of a ``merge``.
        output: lines that the page shows below a command or a program.
        line: of the block in the page.
    """

    kind: str
    text: str
    line: int
    name: str = ""
    base: str = ""
    output: list[str] = field(default_factory=list)


def steps(page: Path) -> list[Step]:
    """Return the steps of a page, in its order."""
    text, taken = page.read_text(encoding="utf-8"), list[Step]()
    program_ends = -1  # where the Python block before ends
    for match in _BLOCK.finditer(text):
        language, block = match[1].strip(), match[2]
        before = text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]
        line = text.count("\n", 0, match.start()) + 1
        if language in ("yaml", "yml"):
            if named := _NAMED.search(before):
                taken.append(Step("write", block, line, named[1]))
            elif merged := _MERGED.search(before):
                taken.append(Step("merge", block, line, merged[1], merged[2]))
        elif language == "python":
            taken.append(Step("python", block, line))
            program_ends = match.end()
        elif language == "" and program_ends >= 0 and not text[program_ends : match.start()].strip():
            taken[-1] = replace(taken[-1], output=block.splitlines())
        elif language in _SHELL:
            taken += _commands(block, before, line, taken)
    return taken


def _commands(block: str, before: str, line: int, earlier: list[Step]) -> list[Step]:
    lines = block.replace("\\\n", " ").splitlines()
    first = next((each for each in lines if each.strip() and not each.startswith("#")), "")
    if any(each.startswith("$ ") for each in lines):
        parts = re.split(r"^\$ ", "\n".join(lines), flags=re.M)[1:]
        return [Step("run", part.split("\n", 1)[0], line, output=part.splitlines()[1:]) for part in parts]
    if _PROGRAM.match(first):
        return [Step("run", each, line) for each in lines if each.strip() and not each.lstrip().startswith("#")]
    if _AGAIN.search(before):
        last = next(step for step in reversed(earlier) if step.kind == "run" and not step.text.startswith("kill"))
        return [Step("run", last.text, line, output=lines)]
    return []
