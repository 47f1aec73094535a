"""One row an image, on disk: built, read by blocks, filtered, weighted."""
