"""PNG pictures of features, boxes and masks."""
