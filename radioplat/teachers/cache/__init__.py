"""Features on disk, by what they depend on."""
