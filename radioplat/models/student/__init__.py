"""The student: backbone, heads, checkpoint format."""
