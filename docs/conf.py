"""The site: `nox -s docs` builds it. release/site_pages.py has what is special about it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "release")]

import site_pages  # noqa: E402

site_pages.import_as_type_checker()
site_pages.annotate_attributes()

from hostrouting import __version__  # noqa: E402

project = "hostrouting"
author = "the authors of hostrouting"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "site_pages",
]
default_role = "name"
# A page shows --options.
smartquotes = False
# Plain output has no language.
highlight_language = "text"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_baseurl = "https://hostrouting.github.io/hostrouting/"
html_theme_options = {
    # A line of 100 characters fits beside both columns of a window of 1,280 pixels.
    "light_css_variables": {"code-font-size": "72%"},
    "source_repository": "https://github.com/hostrouting/hostrouting/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_title = f"hostrouting {__version__}"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

intersphinx_mapping = site_pages.inventories(ROOT / "build/inventories")
myst_heading_anchors = 4
