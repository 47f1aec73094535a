"""Channels, heads, blocks and single weights that go."""
