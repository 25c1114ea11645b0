"""systemd: the units of this machine, or of an offline image."""
