"""nft and ebtables: the packet rules of the machine, through their tools."""
