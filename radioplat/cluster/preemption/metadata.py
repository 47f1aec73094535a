"""Preemption notices of this machine from a cloud's metadata service.

- AWS: ``spot/instance-action`` of the instance metadata service, version 2, two minutes in advance (EC2 User Guide,
  "Spot Instance interruption notices"). No notice is a 404.
- Google Cloud: ``instance/preempted``, ``TRUE`` about 30 seconds in advance (Compute Engine, "Spot VMs").

Both addresses are link-local and bypass any proxy. The SDKs' environment variables can change them.
"""

from __future__ import annotations

import datetime
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

_ANSWERS_S = 2.0
_TOKEN_S = 21600
GCP_NOTICE_S = 30.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Notice:
    """This machine will be terminated.

    Attributes:
        at: time of termination, seconds since the epoch.
        detail: description for messages.
    """

    at: float
    detail: str

    @property
    def seconds(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self.at - time.time())


class Aws:
    """EC2's metadata service."""

    def __init__(self) -> None:
        self._base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
        self._token = ""

    def notice(self) -> Notice | None:
        """Return the notice, or None if there is none.

        Raises:
            OSError: the service does not answer.
        """
        try:
            return self._ask()
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            self._token = ""  # it has expired
            return self._ask()

    def _ask(self) -> Notice | None:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = _get(f"{self._base}/latest/api/token", ttl, "PUT")
        token = {"X-aws-ec2-metadata-token": self._token}
        try:
            answer = _get(f"{self._base}/latest/meta-data/spot/instance-action", token)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        try:
            fields = json.loads(answer)
            at = datetime.datetime.fromisoformat(fields["time"])
            action = str(fields["action"])
        except (ValueError, KeyError, TypeError):
            raise OSError(f"the metadata service answered {answer[:200]!r} for spot/instance-action") from None
        if at.tzinfo is None:
            at = at.replace(tzinfo=datetime.UTC)
        return Notice(at.timestamp(), f"EC2 will {action} this spot instance at {at.isoformat()}")


class Gcp:
    """Compute Engine's metadata service."""

    def __init__(self) -> None:
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._url = f"http://{host}/computeMetadata/v1/instance/preempted"

    def notice(self) -> Notice | None:
        """Return the notice, or None if there is none.

        Raises:
            OSError: the service does not answer.
        """
        answer = _get(self._url, {"Metadata-Flavor": "Google"}).strip()
        if answer not in ("TRUE", "FALSE"):
            raise OSError(f"the metadata service answered {answer[:200]!r} for instance/preempted")
        return Notice(time.time() + GCP_NOTICE_S, "Compute Engine preempts this VM") if answer == "TRUE" else None


CLOUDS: dict[str, Callable[[], Aws | Gcp]] = {"aws": Aws, "gcp": Gcp}


def find_cloud() -> str | None:
    """Return the name of the cloud whose metadata service answers here; None if none does."""
    for name, cloud in CLOUDS.items():
        try:
            cloud().notice()
        except OSError:
            continue
        return name
    return None


def _get(url: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)
    with _direct.open(request, timeout=_ANSWERS_S) as answer:
        return answer.read(65536).decode(errors="replace")
