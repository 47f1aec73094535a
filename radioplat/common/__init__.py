"""Utilities for all packages: atomic files, hashes, CPU threads, collectives, SIGTERM, redaction, the terminal."""
