"""Ledger of consumed samples, and the proof that each was consumed exactly once."""
