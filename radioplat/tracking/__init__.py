"""What a run writes down: status.json, the results folder, its lease, costs."""
