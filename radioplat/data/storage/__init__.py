"""The one door to files and object stores."""
