"""Checkpoints, ONNX files and engines as W&B artifacts, with their lineage."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Product:
    """A file or a folder that a task created.

    Attributes:
        kind: the artifact's type: ``checkpoint``, ``onnx``, ``engine``.
        made_of: inputs that it was created from.
        aliases: of the version; ``latest`` is always one.
    """

    path: Path
    kind: str
    made_of: Sequence[Path] = ()
    aliases: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the artifact: the last two folders of its path, and a hash of the path.

        Each new content at this path becomes a version of the artifact.
        """
        home = self.path.resolve().parent
        words = re.sub(r"[^0-9A-Za-z_.-]+", "-", "-".join(home.parts[-2:])).strip("-.")
        return f"{words}-{self.kind}-{hashlib.sha256(str(home).encode()).hexdigest()[:6]}"[:128]


def artifact(product: Product, upload: bool) -> Any:
    """Create the artifact, with the files themselves or references to them, and their checksums.

    Both have the same digest for the same content, by which W&B recognizes a version of another run.
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
    """Log an artifact as created by ``run``."""
    run.log_artifact(artifact(product, upload), aliases=["latest", *product.aliases])


def use_product(run: Any, product: Product, upload: bool) -> None:
    """Log that ``run`` used an artifact; also offline, which wandb's own ``use_artifact`` does not support."""
    # The public method does this and then waits for the server. For the digest of an existing version W&B creates no
    # new one.
    run._log_artifact(artifact(product, upload), aliases=[], is_user_created=True, use_after_commit=True)
