"""What a student is worth: a library that knows no task."""
