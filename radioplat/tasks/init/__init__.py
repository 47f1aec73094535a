"""``radioplat init``: write specs, search spaces, job scripts and cluster files into a folder."""
