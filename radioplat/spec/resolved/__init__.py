"""What follows from several fields: teachers, terms, sizes, partitions."""
