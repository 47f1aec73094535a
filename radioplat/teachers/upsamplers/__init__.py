"""What makes a teacher's map finer than its backbone's."""
