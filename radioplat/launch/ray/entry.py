"""The function that Ray Train calls in each worker. Its controller imports this module too: no heavy imports here."""

from __future__ import annotations

from typing import Any

from radioplat.errors import RadioplatError


def train_function(config: dict[str, Any]) -> RadioplatError | None:
    """Run a worker of Ray Train. ``config["arguments"]`` is pickled here, so that only workers unpickle it.

    Returns:
        The error that all workers raised at the same step, if any. It is not raised, because Ray Train would then
        restart the workers, which would raise it again.
    """
    from ray import cloudpickle

    from radioplat.cluster.preemption.training_locks import training
    from radioplat.launch.ray.ray_worker import work

    try:
        with training():
            work(*cloudpickle.loads(config["arguments"]))
    except RadioplatError as error:
        if not error.agreed:
            raise
        return error
    return None
