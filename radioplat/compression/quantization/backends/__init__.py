"""Ranges measured by other toolkits, in the same quantizers."""
