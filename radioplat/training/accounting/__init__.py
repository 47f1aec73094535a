"""What is written down of steps, costs and attempts."""
