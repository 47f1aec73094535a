"""``radioplat pack``: loose images into shards."""
