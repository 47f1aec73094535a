"""`radioplat lineage`: from an artifact back to its images, and from an image to the artifacts with it."""
