"""Guards: conditions that skip a step, pause a run or end it; `training/loop/run_hooks.py` lists them."""
