"""What a user calls by name: one folder a command."""
