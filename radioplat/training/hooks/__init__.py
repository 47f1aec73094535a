"""Step hooks: callbacks of the training loop, in one ordered list, including users' hooks."""
