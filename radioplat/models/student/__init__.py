"""The student, its heads, its checkpoint."""
