"""How many requests do readers send to an object store that refuses some? `benchmarks.judges.store_requests` counts.

``python -m benchmarks.store_requests``: four processes of eight threads read an index's images as a run reads them,
while the store throttles, and while it fails for a minute. The last line on stdout is one JSON object with the figures
of each case.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

CASES = {
    "throttle": ["--case", "throttle", "--rate", "100"],
    "throttle_much": ["--case", "throttle", "--rate", "20", "--images", "800"],
    "outage": ["--case", "outage", "--images", "12000"],
    "refused": ["--case", "outage", "--fault", "refuse", "--images", "12000"],
}


def read_all(folder: str, bucket: str, process: int, processes: int, threads: int) -> Iterator[None]:
    """Yield when the bucket's index is made in ``folder``, and then after each image of this process's part."""
    from radioplat.data.index.build import build_index
    from radioplat.data.loading.fetch import Fetcher
    from radioplat.spec.schema.dataset import SplitConfig, TarSource

    split = SplitConfig(tar_data_sources=[TarSource(bucket)])
    index = build_index(split, "d", Path(folder), max_pixels=10**6)
    fetcher = Fetcher(index, 60.0)
    yield
    with ThreadPoolExecutor(threads) as pool:
        for read in as_completed([pool.submit(fetcher.bytes_of, row) for row in range(process, len(index), processes)]):
            read.result()
            yield


def main() -> None:
    """Count in each case, and print the figures."""
    figures = {}
    for name, arguments in CASES.items():
        command = [sys.executable, "-m", "benchmarks.judges.store_requests", "benchmarks.store_requests:read_all"]
        done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        figures[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(name, figures[name], flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
