"""From the order to batches, by threads or by Ray Data."""
