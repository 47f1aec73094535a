"""The log of a task: ``experiment.yaml``, and its beginning and end in ``status.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from radioplat.errors import Stopped
from radioplat.tracking.record_versions import prepare_folder
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import Status, StatusLog

Result = TypeVar("Result")


def log_task(
    folder: TaskFolder,
    task: str,
    spec_yaml: str,
    action: Callable[[], Result],
    kpi: Callable[[Result], Mapping[str, Any]] = lambda result: {},
    kinds: Iterable[str] = (),
) -> Result:
    """Run ``action`` as ``task``: log STARTED before it, SUCCESS with ``kpi`` or FAILURE with the reason after it.

    A stop by SIGTERM is not logged as a failure. Exceptions of ``action`` are raised.

    Args:
        kinds: of the records that ``action`` writes in the folder, besides the status.

    Raises:
        NewerRecord: a newer version wrote a record in the folder; ``action`` is not called and nothing is written.
    """
    prepare_folder(folder.path, ("status", *kinds))
    with StatusLog(folder.status_path) as status:
        status.write(f"{task} starts", Status.STARTED)
        folder.write_experiment(spec_yaml)
        try:
            result = action()
        except Stopped as stopped:
            status.write(f"{task} was {stopped}", verbosity="WARNING")
            raise
        except BaseException as error:
            status.write(f"{task} failed: {str(error) or type(error).__name__}", Status.FAILURE, verbosity="ERROR")
            raise
        status.write(f"{task} is done", Status.SUCCESS, kpi=kpi(result))
        return result
