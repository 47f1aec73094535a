"""Where Ray Train enters a worker. Its controller imports this too: nothing heavy may stand at the top."""

from __future__ import annotations

from typing import Any

from radioplat.errors import RadioplatError


def train_function(config: dict[str, Any]) -> RadioplatError | None:
    """Run a worker of Ray Train. ``config["run_and_pools"]`` is pickled by us, so that only workers open it.

    Returns:
        The error that all workers ended the run with, if they did: raised, it would only be run into again.
    """
    from ray import cloudpickle

    from radioplat.cluster.preemption.training_locks import training
    from radioplat.launch.ray.worker import work

    try:
        with training():
            work(*cloudpickle.loads(config["run_and_pools"]))
    except RadioplatError as error:
        if not error.agreed:
            raise
        return error
    return None
