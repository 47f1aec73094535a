"""The shard index on disk, one row per image: building, block-wise reading, filters, sampling weights."""
