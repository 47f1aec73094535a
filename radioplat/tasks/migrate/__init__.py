"""`radioplat migrate`: specs of other programs, specs and runs of other versions."""
