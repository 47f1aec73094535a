"""The sample order: which sample has position n, and which rank reads it."""
