"""What any package may use: atomic files, hashes, CPU threads, collectives, SIGTERM, redaction, the terminal."""
