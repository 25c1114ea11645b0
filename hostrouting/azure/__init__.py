"""For Azure's nodes alone; each package is optional, and node/capabilities.py alone imports it.

probe_snat/   rules by which IPv6 probes of the load balancer reach pods
stale_cni/    the cleanup after azure-vnet
"""
