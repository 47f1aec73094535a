"""``radioplat diagnose``, ``ledger``, ``show data``: inspect the files of a run."""
