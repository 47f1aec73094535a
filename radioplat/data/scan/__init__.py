"""Shards to rows and faults."""
