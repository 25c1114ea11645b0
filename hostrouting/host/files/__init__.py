"""Files and the run lock: those of this machine, or of an offline image."""
