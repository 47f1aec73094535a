"""Checkpoints, ONNX files and engines as W&B artifacts, and what was made of what."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Product:
    """A file or a folder that a task made.

    Attributes:
        kind: the artifact's type: ``checkpoint``, ``onnx``, ``engine``.
        made_of: what it was made of.
        aliases: of the version; ``latest`` is always one.
    """

    path: Path
    kind: str
    made_of: Sequence[Path] = ()
    aliases: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Of the artifact: its home's two last folders, and a hash of where they lie.

        Every content that is made there becomes a version of it.
        """
        home = self.path.resolve().parent
        words = re.sub(r"[^0-9A-Za-z_.-]+", "-", "-".join(home.parts[-2:])).strip("-.")
        return f"{words}-{self.kind}-{hashlib.sha256(str(home).encode()).hexdigest()[:6]}"[:128]


def artifact(product: Product, upload: bool) -> Any:
    """The artifact: the files themselves, or where they lie, with a checksum each.

    Both have one digest for one content, by which W&B knows a version again that another run made.
    """
    import wandb

    path = product.path.resolve()
    metadata = {"path": str(path), "made_of": [str(Path(of).resolve()) for of in product.made_of]}
    artifact = wandb.Artifact(product.name, product.kind, metadata=metadata)
    if not upload:
        artifact.add_reference(path.as_uri())
    elif path.is_dir():
        artifact.add_dir(str(path), policy="immutable")
    else:
        artifact.add_file(str(path), policy="immutable")
    return artifact


def log_product(run: Any, product: Product, upload: bool) -> None:
    """Log it as made by ``run``, and what it was made of as used by it."""
    run.log_artifact(artifact(product, upload), aliases=["latest", *product.aliases])


def use_product(run: Any, product: Product, upload: bool) -> None:
    """Say that ``run`` used it. Offline, too, where wandb's own ``use_artifact`` refuses: ``wandb sync`` tells it."""
    # The public method does this and then waits for the server. With the digest of a version that is there W&B makes
    # no second one.
    run._log_artifact(artifact(product, upload), aliases=[], is_user_created=True, use_after_commit=True)
