"""The watchdog, and the phases of a worker that it reports."""
