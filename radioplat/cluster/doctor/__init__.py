"""``radioplat doctor``: is this machine fit for a run?"""
