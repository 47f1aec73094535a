"""What a run tells: status.json, W&B, progress bars, the HTML report."""
