"""The training tasks: which model, objective, optimizer and validation each uses."""
