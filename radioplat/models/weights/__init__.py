"""Reading weight files; fitting their names and shapes."""
