"""Access to local files and object stores, with retries during outages; the only package that opens data files."""
