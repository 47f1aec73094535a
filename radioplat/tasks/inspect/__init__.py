"""``radioplat diagnose``, ``ledger``, ``show data``: what a run left."""
