"""The operator's JSON as frozen values: its sections, the rules for its fields, the wire format.

sections    HostRoutingConfig, and the sections of the pair
siblings    the sections of the siblings, and of Watch
rules       one function for each kind of field: it returns the normalised value, or raises
wire        JSON to values and back: types, unknown keys, all errors at once
"""
