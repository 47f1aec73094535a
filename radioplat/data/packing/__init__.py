"""``radioplat pack``: write loose images into WebDataset shards."""
