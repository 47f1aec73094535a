"""Settings derived from several fields: teachers, loss terms, image sizes, partitions."""
