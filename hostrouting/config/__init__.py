"""The operator's JSON as frozen values: sections, rules for fields, and the wire format.

sections    HostRoutingConfig, and the sections for routes and their check
optional    the sections of optional features: probes, cleanup and watch
rules       one function for each kind of field: it returns the normalised value or raises
wire        converts JSON to values and back; reports unknown keys and all errors at once
"""
