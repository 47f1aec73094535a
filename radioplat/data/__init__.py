"""Shards -> index -> order -> decoded views -> micro-batches. No torch in here."""
