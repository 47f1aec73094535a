"""Cache of teacher features on disk."""
