"""Training on one rank, from the checkpoint it starts from to the last step."""
