"""Configuration of the documentation, which ``make docs`` builds into ``docs/_build/html``."""

import logging
import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

from softperm import __version__

project = "softperm"
author = "The softperm developers"
copyright = "The softperm developers; MIT licence"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "reference_pages",
]
exclude_patterns = ["_build", "_extensions"]
templates_path: list[str] = []

# Markdown and notebooks
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm looks for ipywidgets
logging.getLogger("traitlets").setLevel(logging.WARNING)
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

# API reference
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["triton"]
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
warnings.filterwarnings("ignore", category=DeprecationWarning)

# Appearance: everything is local, so that the site works without a network
html_theme = "furo"
html_title = f"softperm {release}"
html_static_path = ["_static"]
html_css_files = ["softperm.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#3451b2",
        "color-brand-content": "#3451b2",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif",
    },
    "dark_css_variables": {
        "color-brand-primary": "#9db2ff",
        "color-brand-content": "#9db2ff",
    },
    "top_of_page_buttons": [],
}
html_math_renderer = "mathml"
