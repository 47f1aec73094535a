"""Which files a scan reads again, and which it leaves out."""

from __future__ import annotations

import time

from radioplat.data.index.scan_wait import Patience, ScanWait
from radioplat.data.scan.scan import ScanBatch
from radioplat.data.scan.sources import ShardFile, SourceFiles
from radioplat.data.storage.files import FileState

NAMES = ("0.tar", "1.tar", "2.tar")
SOURCE = SourceFiles("source", "/data", "tar", 1.0, [ShardFile(name, FileState(1, 1)) for name in NAMES], None)
ONE_FILE = 0.5  # seconds


def lost(*names: str) -> list[ScanBatch]:
    return [ScanBatch(NAMES.index(name), "tar", "/data", (name,)) for name in names]


def test_an_outage_that_ends_in_the_middle_of_a_scan_leaves_no_file_out():
    with ScanWait([SOURCE], Patience(ONE_FILE, 60)) as wait:
        assert wait.may_read(lost(*NAMES), lambda path: "")
        assert wait.may_read(lost(*NAMES), lambda path: "input/output error")  # pauses for longer than ONE_FILE
        assert wait.may_read(lost("0.tar"), lambda path: "input/output error")


def test_a_file_that_fails_alone_is_left_out():
    with ScanWait([SOURCE], Patience(ONE_FILE, 60)) as wait:
        assert wait.may_read(lost(*NAMES), lambda path: "")
        begin = time.monotonic()
        while wait.may_read(lost("1.tar"), lambda path: "input/output error"):
            assert time.monotonic() - begin < 30
        assert time.monotonic() - begin >= ONE_FILE
