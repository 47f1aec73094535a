"""Operations and bytes of a run for each image, and decisions that follow: precision, replicas of teachers."""
