"""Clients of object stores (pyarrow's), created once per process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, GcsFileSystem, S3FileSystem, resolve_s3_region

from radioplat.data.storage.request_rate import paced

Result = TypeVar("Result")
_REFUSED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT",
            "INVALID_CLIENT_TOKEN", "MISSING_AUTHENTICATION_TOKEN", "REQUEST_EXPIRED", "REQUEST_TIME_TOO_SKEWED",
            "HTTP status 400", "HTTP status 401", "HTTP status 403", "UNAUTHENTICATED", "PERMISSION_DENIED",
            "Permission denied")  # fmt: skip


def strip_scheme(path: str) -> str:
    """Return ``bucket/key``, as the clients need it."""
    return path.partition("://")[2].rstrip("/")


def filesystem(path: str) -> FileSystem:
    """Return the client for ``path``.

    Credentials, region and endpoint come from the environment alone, from the variables of AWS's and Google's tools
    (``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``,
    ``GOOGLE_APPLICATION_CREDENTIALS``, ``CLOUD_STORAGE_EMULATOR_ENDPOINT``); a spec contains none of them.

    Raises:
        OSError: the bucket's region cannot be determined.
    """
    scheme, _, rest = path.partition("://")
    bucket = rest.partition("/")[0]
    return _gcs() if scheme == "gs" else _s3(bucket, endpoint(), _region())


def request(path: str, action: Callable[[FileSystem, str], Result]) -> Result:
    """Return ``action(client, bucket/key)``, at the rate at which the bucket of ``path`` takes requests.

    Raises:
        OSError: by the action.
    """
    return paced(path, lambda: action(filesystem(path), strip_scheme(path)))


@lru_cache(maxsize=64)
def _s3(bucket: str, endpoint: str | None, region: str | None) -> FileSystem:
    # One attempt per call: `retry.retried` repeats it, for all kinds of storage alike.
    return S3FileSystem(
        region=region or ("us-east-1" if endpoint else resolve_s3_region(bucket)),
        endpoint_override=endpoint,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
        connect_timeout=10,
        request_timeout=30,
    )


@lru_cache(maxsize=1)
def _gcs() -> FileSystem:
    from datetime import timedelta

    return GcsFileSystem(retry_time_limit=timedelta(seconds=20))


def credentials_refused(error: OSError) -> bool:
    """Return True if the store may have refused the credentials; S3 answers 400 to an expired token."""
    return any(word in str(error) for word in _REFUSED)


def renew_clients() -> None:
    """Drop all clients, so that the next ones read credentials again."""
    _s3.cache_clear()
    _gcs.cache_clear()


def endpoint() -> str | None:
    """Return the address of the S3 server; None: AWS."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
