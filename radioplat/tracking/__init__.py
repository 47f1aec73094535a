"""Records of a run: status.json, the results folder, its lease, costs."""
