"""Cache of teachers' features on disk."""
