"""The ledger of consumed samples, and the check that each was consumed exactly once."""
