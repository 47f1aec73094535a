"""What may stop or skip a step."""
