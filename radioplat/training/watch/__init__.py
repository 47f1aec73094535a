"""The watchdog, and the phases that it reports."""
