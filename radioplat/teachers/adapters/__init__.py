"""One file for each kind of model that can teach."""
