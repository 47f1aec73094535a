"""One file for each kind of model that can teach; ``registry`` finds the one that a spec names."""
