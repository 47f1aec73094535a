"""The machines that runs stand on: notices that one is to go, and whether one is fit for a run."""
