"""What the user asked for: no file is opened here, no model built."""
