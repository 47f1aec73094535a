"""What a run computes and sends for each image, and what follows: its precision, and the replicas of teachers."""
