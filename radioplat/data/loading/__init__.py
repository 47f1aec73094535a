"""Loading of batches in the sample order, by threads or by Ray Data."""
