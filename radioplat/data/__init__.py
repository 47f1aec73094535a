"""Shards -> index -> order -> decoded views -> global batches. No torch in here."""
