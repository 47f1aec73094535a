"""Terminal output of ``radioplat lineage``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.errors import DataError
from radioplat.tasks.lineage.image import ImageHistory
from radioplat.tasks.lineage.lineage import Lineage, states_in_words
from radioplat.tasks.lineage.node import Node, State
from radioplat.tasks.lineage.written import history_tables

_DIGITS = 12  # of a hash
_MOST = 20  # files or shards of a state


def show(made: Lineage) -> None:
    """Print the lineage as a tree, then what could not be verified; or the history of an image.

    Raises:
        DataError: a file or a shard has changed since it was recorded, after all was printed.
    """
    if made.image is not None:
        _show_history(made.image)
    else:
        _show_tree(made.artifact)
        terminal.say(f"{made.images:,} different images; files: {states_in_words(made) or 'none'}")
    if made.page is not None:
        terminal.say(f"page: {made.page}")
    if made.image is None and not made.is_same:
        changed = [file.path for file in made.files[State.changed]]
        shards = [shard for node in made.artifact.walk() for shard in node.facts.get("shards", ())]
        changed += [shard["path"] for shard in shards if shard["state"] == State.changed.value]
        hint = "Restore what was recorded, or read the lineage as what it was, not as what is there now."
        listed = ", ".join(list(dict.fromkeys(changed))[:_MOST])
        raise DataError(f"changed since it was recorded: {listed}", where=made.artifact.path, hint=hint)


def _show_tree(node: Node) -> None:
    done: set[str] = set()

    def branch(node: Node, first: str, rest: str) -> None:
        """Print a node and what it was made of, with the lines of the tree before them."""
        again = node.id in done and bool(node.made_from)
        done.add(node.id)
        path = f"  {node.path}" if node.path and node.path not in node.title else ""
        terminal.say(f"{first}{node.kind.value} {node.title}{path}{'  (as above)' if again else ''}")
        if again:
            return
        under = rest + ("│  " if node.made_from else "   ")
        for file in node.files:
            state = "" if file.state is State.same else f"  {file.state.value}"
            terminal.say(f"{under}{file.name}{f'  {file.sha256[:_DIGITS]}' if file.sha256 else ''}{state}")
        for note in node.notes:
            terminal.say(f"{under}note: {note}")
        for shard in _unlike(node):
            terminal.say(f"{under}{shard}")
        for number, each in enumerate(node.made_from, start=1):
            last = number == len(node.made_from)
            branch(each, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))

    branch(node, "", "")


def _unlike(node: Node) -> list[str]:
    """Return lines about the shards: their number, and those that are not as they were."""
    shards = node.facts.get("shards", ())
    lines = [f"{shard['path']}: {shard['state']}" for shard in shards if shard["state"] != State.same.value]
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return [f"{len(shards):,} shards or folders", *lines[:_MOST], *more] if shards else []


def _show_history(history: ImageHistory) -> None:
    terminal.say(f"{history.key} of {history.shard}")
    steps, artifacts = history_tables(history)
    if history.uses:
        steps.show()
    else:
        terminal.say("no step of these runs had it")
    artifacts.show()
    for note in history.notes:
        terminal.say(f"note: {note}")
