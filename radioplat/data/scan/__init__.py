"""Scanning of tar shards: one index row per image, and a list of damaged members."""
