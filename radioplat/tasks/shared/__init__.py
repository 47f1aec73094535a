"""What several tasks need."""
