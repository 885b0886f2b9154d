"""Settings of Sphinx. Nothing is fetched, neither when the site is made nor when it is read."""

from chop.base.installed import __version__

project = "chop"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
highlight_language = "text"
html_theme = "furo"
html_title = f"chop {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_use_index = False
# Options stay as they are typed: `--out` would become a dash.
smartquotes = False
# Summaries of found pages would be fetched, which browsers refuse for files.
html_show_search_summary = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
