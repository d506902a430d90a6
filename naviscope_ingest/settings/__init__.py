"""Configuration: keywords, then environment variables, then a file. Nothing is read unless `load_settings` is called.

From the ground up: origins are values that know where they come from; shapes are what values may look like, read off
the classes that they configure; files and environment make trees of values; loading puts them together; reference
writes the JSON Schema and the page of documentation.
"""

from naviscope_ingest.settings.loading import load_settings
from naviscope_ingest.settings.origins import Origin, Problem
from naviscope_ingest.settings.reference import configuration_page, json_schema
from naviscope_ingest.settings.values import EndpointOptions, Entry, Settings, StoreOptions

__all__ = [
    "EndpointOptions",
    "Entry",
    "Origin",
    "Problem",
    "Settings",
    "StoreOptions",
    "configuration_page",
    "json_schema",
    "load_settings",
]
