"""The documentation: `make docs` builds it, with warnings as errors."""

import runpy
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxRole

import compcoll

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "compcoll"
author = "The compcoll developers"
copyright = author
version = release = compcoll.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
nitpicky = True
# Classes of other packages: the build does not reach for their documentation.
nitpick_ignore_regex = [
    ("py:.*", r"(MPI|mpi4py|numpy|np|torch|dist|collections|os|datetime|ml_dtypes)\..*"),
    ("py:.*", r"(ProcessGroup|Path|timedelta|optional|array|path|mapping|sequence|callable)"),
]

# -- text

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # included files begin at a level of their own

# -- docstrings

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc says the types
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# -- programs and notebooks

doctest_global_setup = "import numpy as np\nimport compcoll"
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_kernel_rgx_aliases = {".*": "python3"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# -- pages

html_theme = "pydata_sphinx_theme"
html_title = "compcoll"
html_static_path = ["_static"]
html_css_files = ["compcoll.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "compcoll"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "tango",
}
# Pages that stand alone have no section to navigate.
html_sidebars = {"quickstart": [], "how-it-works": []}


class Source(SphinxRole):
    """A file or folder of the repository, which has to exist."""

    def run(self):
        if not (ROOT / self.text).exists():
            message = f"{self.text} is not in the repository"
            return [], [self.inliner.reporter.warning(message, line=self.lineno)]
        return [nodes.literal(self.rawtext, self.text, classes=["file"])], []


def draw_figures(app):
    """Draw what pages show; each script in ``figures`` writes an image of its own name beside it."""
    for script in sorted((HERE / "figures").glob("*.py")):
        runpy.run_path(str(script), run_name="__main__")


def setup(app):
    sys.path.insert(0, str(ROOT))
    app.add_role("src", Source())
    app.connect("builder-inited", draw_figures)
