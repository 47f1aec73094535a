"""The reference of all spec fields, read from the comments of the schema, for commands, editors and docs."""
