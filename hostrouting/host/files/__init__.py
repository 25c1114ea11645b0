"""Files and the run lock of this machine or of an offline image."""
