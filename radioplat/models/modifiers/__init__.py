"""What changes a built backbone in place."""
