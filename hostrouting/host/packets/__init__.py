"""nft and ebtables: the machine's packet rules, through their programs."""
